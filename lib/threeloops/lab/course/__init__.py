"""What holds the labs together: the map of the course, its loops, a reader's journal, audited claims."""
