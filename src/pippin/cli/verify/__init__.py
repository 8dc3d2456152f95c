"""What `pippin verify` shows: its report as text and as a page, and the library lm-eval."""
