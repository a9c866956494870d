"""Looking inside: the paper's figures from any checkpoint."""
