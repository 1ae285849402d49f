"""Decisions: which trial next, on which nodes, what is tried again and reused. No Ray, no clock; no files, but for what
`durations` learns from earlier ledgers."""
