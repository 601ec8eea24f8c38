"""Groups of training examples and their labels."""
