"""The endpoints that are no generation: each module gives its `routes(api)`, and is found because it is there."""
