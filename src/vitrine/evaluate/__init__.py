"""How good a model is. What is here measures and never trains."""
