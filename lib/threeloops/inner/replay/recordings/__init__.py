"""The schema of a recording, its checks, and how strided views lie in memory."""
