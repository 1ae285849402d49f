"""What a trial's ranks do, a package for each."""
