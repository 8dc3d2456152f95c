"""Pictures, sound, videos and documents in conversations, as far as a model can take them.

Begin with `reading.py`: documents become text, and media that a model cannot take become a line that says so.
"""
