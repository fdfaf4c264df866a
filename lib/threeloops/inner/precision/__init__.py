"""Number formats and training with few bits; `threeloops.inner.precision.formats`, `.amp` and `.fp8` are its doors."""
