"""The demo: the paper's main steps on built-in or your own data, with a report."""
