"""Where bytes lie and what reading them costs: stores, simulated slow ones, a cache, the tiers of this machine."""
