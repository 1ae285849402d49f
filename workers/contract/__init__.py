"""What the control plane and the data plane say to each other. Standard library only; anyone may import it."""
