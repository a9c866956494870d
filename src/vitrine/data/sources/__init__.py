"""One small file for each kind of data that people have."""
