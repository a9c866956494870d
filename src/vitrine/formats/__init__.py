"""Read and write checkpoints, ours and those of other libraries."""
