"""From a data set on disk to batches."""
