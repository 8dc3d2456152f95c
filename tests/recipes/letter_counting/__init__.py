"""A kind of model that nobody needs: it counts letters. `test_model_kind` adds it to a copy of Pippin's source."""
