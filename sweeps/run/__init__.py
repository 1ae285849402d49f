"""A sweep carried out: its driver, what carries its trials out (Ray Tune, or this process), what it says."""
