"""Requests of the vendors' own packages, each made from its types so that every field occurs.

`make corpus` makes them anew from the newest packages and prints what is new; `test_requests.py` replays them.
"""
