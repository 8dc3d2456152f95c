"""What goes wrong."""


class KernelError(ValueError):
    """The library refused what it was given."""
