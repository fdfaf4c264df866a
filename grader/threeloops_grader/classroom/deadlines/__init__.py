"""What lateness costs each student: due times with extensions, slip days, and whose hand-in counts in a group."""
