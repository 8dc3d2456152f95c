"""Writers of the generated pages of docs/: `python -m scripts.docs`."""
