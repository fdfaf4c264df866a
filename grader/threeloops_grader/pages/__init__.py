"""HTML and tables that people open: feedback, formgrader's page, and their content policy."""
