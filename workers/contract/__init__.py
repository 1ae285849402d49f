"""What both planes share: messages, paths, variables, limits. Standard library only; anyone may import it."""
