"""Parts of `tl` on whole tensors: products, reductions, the library of elementary functions, and types."""
