"""The whole story of the paper in a few minutes, told on small data."""
