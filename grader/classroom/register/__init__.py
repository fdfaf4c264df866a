"""Who takes the course and by when: the roster, the due dates and the late policy, read from what an instructor has."""
