"""The `sweep` command: thin. It reads arguments and calls one function."""
