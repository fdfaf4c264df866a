"""The processes of a run as the router sees them: the fork server, and what the communication timelines do."""
