"""Networks and their weights, in PyTorch."""
