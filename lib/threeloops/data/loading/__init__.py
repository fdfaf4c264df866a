"""Loading from a store to the device: order, workers, prefetching, and what the consumer waits for."""
