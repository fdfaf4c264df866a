"""Matrix products: tiled, persistent, through descriptors, and fused with rotary positions."""
