"""Transport between two processes: frames over a socket, and values as plain data."""
