"""Copy possible answers from a released notebook or the library, without understanding them, and grade them."""
