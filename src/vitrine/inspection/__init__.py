"""Look inside a model: attention, positions, filters, patch features."""
