"""A sweep carried out: its driver, Ray Tune under it, and what it says while it runs."""
