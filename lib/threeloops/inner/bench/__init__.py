"""What stands behind `interpreter`, `launches`, `meter`, `codegen`, `predict` and replay, a folder each."""
