"""The whole story on built-in data, with a report."""
