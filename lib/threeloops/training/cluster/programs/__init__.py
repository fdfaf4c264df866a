"""A rank: its process, its conversation with the router, and the `torch.distributed` that its program uses."""
