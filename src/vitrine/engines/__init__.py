"""What computes a model: PyTorch now, other runtimes later."""
