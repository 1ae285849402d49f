"""What is said to a person, and how: tables, lines of blocks, addresses, commands to copy."""
