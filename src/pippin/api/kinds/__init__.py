"""Bodies and replies of the endpoints that are no generation: what dialects are to generations, with no HTTP in it."""
