"""One node: its cores, GPUs, counters and files. Knows nothing of a trial's work."""
