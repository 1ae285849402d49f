"""Ray as a place: its nodes, its jobs, what listens there and how it is checked. Trials are not run here."""
