"""Stores of bytes and the cost of reading them: real and simulated slow stores, a cache, and this machine's tiers."""
