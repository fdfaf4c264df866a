"""The roster, the due dates and the late policy of a class, read from an instructor's files."""
