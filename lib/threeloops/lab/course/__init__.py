"""The frame around the labs: the map of the course, its loops, a reader's journal, and audited claims."""
