"""What only a CPU needs: the one door through which `engines/device.py` reaches it."""
