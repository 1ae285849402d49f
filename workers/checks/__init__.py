"""What a node is asked before it is trusted: its self-tests and the doctor's questions."""
