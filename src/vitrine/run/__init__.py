"""From a recipe to a trained model: the only place that knows every part of training."""
