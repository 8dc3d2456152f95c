"""The notations in which models write calls and values, shared by the formats. Begin with `json_calls.py`."""
