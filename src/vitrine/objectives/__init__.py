"""What a training step minimises."""
