"""OpenAI's Realtime API over a WebSocket: a conversation that is typed or spoken, on one connection.

Begin with `connection.py`, which takes the events of a client; `session.py` says what a session can be set to,
`events.py` what travels, `conversation.py` what was said. A language model that can't hear or speak is helped by the
transcription model and the speech model that are served beside it: `input_sound.py`, `turns.py` and `transcripts.py`
hear, `response.py` answers, `voice.py` speaks. `older.py` is the shape that the API had in its beta.
"""
