"""How far results of the kernels may be from those of mlx-lm or mlx-vlm, and the error if they are farther."""

TOLERANCE = 1e-3
"""A fraction of the largest number of a layer's output: far above rounding, far below another architecture's."""


class OtherAnswer(Exception):
    """The kernels compute something else than the installed mlx-lm or mlx-vlm, whose class of the model has changed."""
