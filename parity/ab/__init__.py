"""``qsa ab``: two settings side by side, A B B A in fresh processes: speed, and whether the outputs hold."""
