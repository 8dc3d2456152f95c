"""Films in prompts: which of their frames are shown, and how these are prepared and written."""
