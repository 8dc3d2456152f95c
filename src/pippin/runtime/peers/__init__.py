"""Other servers behind this one: their models are leased, limited and counted as if they ran here.

Begin with `peers.py`. `requests.py` writes a request for Chat Completions, `replies.py` reads the answer as events, and
`source.py` lists the peers' models beside those of this machine. Imported only if there are peers.
"""
