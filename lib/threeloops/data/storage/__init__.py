"""Where bytes are stored and what reading them costs: stores, simulated slow ones, a cache, this machine's tiers."""
