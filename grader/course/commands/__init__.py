"""Commands that need the library and no lab."""
