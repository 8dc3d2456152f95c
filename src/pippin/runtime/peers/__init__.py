"""Other servers behind this one: their models are leased, limited and counted as if they ran here.

Begin with `peers.py`. `requests.py` says a request in the words of Chat Completions, `replies.py` reads the answer as
events, and `source.py` puts the peers' models beside those of this machine. It is imported only where there are peers.
"""
