"""The product loop: a trained model under load."""
