"""From a dataset on disk to batches."""
