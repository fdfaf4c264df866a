"""FlashAttention and 2-simplicial attention, forward and backward."""
