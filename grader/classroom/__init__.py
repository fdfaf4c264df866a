"""nbgrader's side: autograde, its plugin, the gradebook and the exports."""
