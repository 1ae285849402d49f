"""The sweep file, and the cells and trials that it stands for. Nothing here runs anything."""
