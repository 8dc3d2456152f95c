"""The verbs: a shelf with one module for each command, listed in `main.VERBS`. They share nothing with each other."""
