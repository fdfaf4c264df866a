"""Due times with extensions, slip days, whose hand-in counts in a group, and the late penalties that follow."""
