"""The edges of a rank's program: the tensors it passes to `torch.distributed`, and the text it prints."""
