"""The notations of calls and values that several formats share. Begin with `json_calls.py`."""
