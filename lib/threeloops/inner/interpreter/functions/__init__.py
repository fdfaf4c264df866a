"""Functions of `tl` that compute on whole tensors: products, reductions, and the library of elementary functions."""
