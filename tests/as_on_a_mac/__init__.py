"""What differs on a Mac: 16 bits, a GPU's rounding and order of work, its memory, shown on MLX's CPU."""
