"""Let a test observe what a student's functions do to files and to memory."""
