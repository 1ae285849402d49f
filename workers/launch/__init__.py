"""A gang over its placement group: the fork server of a node, a rank's first and last instruction, the outcome."""
