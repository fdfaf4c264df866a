"""Try what works on this machine, and explain the result."""
