"""Drawings for labs 08 to 14, on parallel training and checkpoints."""
