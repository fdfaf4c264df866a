"""Number formats and training with few bits; `threeloops.inner.formats`, `.amp` and `.fp8` are its doors."""
