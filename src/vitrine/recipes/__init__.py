"""Functions that return a Recipe, one for each published setting."""
