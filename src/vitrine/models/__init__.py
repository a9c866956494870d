"""Vision Transformers, BiT ResNets, hybrids and axial models."""
