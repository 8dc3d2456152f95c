"""A struct of nothing but its fields: for answers that the OpenAPI document describes in full."""

from msgspec import Struct


class Closed(Struct, kw_only=True, forbid_unknown_fields=True):
    pass
