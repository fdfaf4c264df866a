"""Number formats and training with few bits; import `formats`, `amp` or `fp8` from here."""
