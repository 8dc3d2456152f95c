"""OpenAI's Realtime API over a WebSocket: a typed or spoken conversation on one connection.

Begin with `connection.py`, which handles the events of a client; `session.py` has the settings of a session,
`events.py` the events on the wire, `conversation.py` the items so far. If the language model can't hear or speak, the
transcription and speech models served beside it do so: `input_sound.py` and `calls.py` hear, `response.py` answers and
speaks.
"""
