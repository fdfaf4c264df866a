"""Elastic training: failure made routine."""
