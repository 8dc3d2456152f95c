"""The verbs: one module for each command, listed in `main.VERBS`. They are independent of each other."""
