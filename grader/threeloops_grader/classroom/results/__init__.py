"""Results of a graded class: tables for other grade books, and a report of what was hard."""
