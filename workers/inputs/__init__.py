"""Where a rank's images come from."""
