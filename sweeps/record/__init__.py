"""What happened, on disk: the ledger, and a trial as a row."""
