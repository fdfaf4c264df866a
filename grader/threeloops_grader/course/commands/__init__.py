"""Commands that need the library but no lab."""
