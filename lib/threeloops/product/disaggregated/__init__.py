"""Serving with prompts computed on one machine and tokens decoded on another."""
