"""Drawings for labs 15 to 18, on serving."""
