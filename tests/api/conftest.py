"""How property tests run in this room: on a busy machine a slow example is no failure."""

from hypothesis import settings

settings.register_profile("busy", deadline=None)
settings.load_profile("busy")
