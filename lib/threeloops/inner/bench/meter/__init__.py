"""How the traffic meter counts."""
