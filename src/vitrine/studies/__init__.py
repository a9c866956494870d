"""What trains many times."""
