"""Side-by-side measurements of Pippin, its peers and the raw models. Nothing here ships."""
