"""The recipes of CONTRIBUTING.md, each carried out with a throw-away example in the files that the recipe names."""
