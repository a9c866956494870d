"""Measure models: predictions, reports, features, few-shot, probes. Nothing here trains a network."""
