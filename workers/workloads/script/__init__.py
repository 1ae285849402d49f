"""A user's own program as what a trial's ranks do: started, joined, and measured as the built-in training is."""
