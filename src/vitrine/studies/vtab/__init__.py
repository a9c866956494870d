"""VTAB-1k: 19 tasks under one protocol."""
