"""Images for ranks of any framework, in NumPy arrays: nothing here imports one."""
