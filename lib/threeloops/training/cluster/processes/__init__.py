"""The processes of a run, as the router sees them: the fork server, and the work of the communication timelines."""
