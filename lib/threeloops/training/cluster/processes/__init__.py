"""Ranks as processes: the fork server, a rank's conversation with the router, and torch's process group."""
