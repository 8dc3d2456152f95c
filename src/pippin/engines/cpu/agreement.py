"""How far the kernels may be from what mlx-lm or mlx-vlm gives, and what is raised where they are farther."""

TOLERANCE = 1e-3
"""Of the largest number of a layer's output: far above rounding, far below another architecture's."""


class OtherAnswer(Exception):
    """The kernels compute something else than mlx-lm or mlx-vlm does, whose class of the model is not what it was."""
