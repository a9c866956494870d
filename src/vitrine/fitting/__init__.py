"""A classifier from a folder of images within a time budget."""
