"""How ranks are joined, and where they find each other."""
