"""Data checks: damaged files, duplicates, leaks."""
