"""Every architecture of mlx-lm, as a tiny random checkpoint: begin with `test_every_architecture.py`."""
