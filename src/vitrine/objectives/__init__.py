"""Training objectives: from a batch to a loss."""
