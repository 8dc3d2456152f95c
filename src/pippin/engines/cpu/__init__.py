"""What only a CPU needs. `engines/device.py` decides whether it is used; no other room asks what the device is.

`blas.py`: the library that multiplies matrices. `functions.py`: exp and its kin, attention and rotary embedding in
place of MLX's own. `in_place.py`: the same for many numbers at once, by numpy. `blocks.py`: blocks of the prefix
cache, copied by the host.
"""
