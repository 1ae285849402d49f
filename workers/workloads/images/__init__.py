"""Training on images: its protocols, and what a step exposes."""
