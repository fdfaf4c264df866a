"""Functions of `tl` that compute on whole tensors (products, reductions, the elementary functions), and statements."""
