"""What does the arithmetic, a package for each."""
