"""Products run on the accelerated BLAS, as in a worker: it must be in the process before mlx is."""

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

accelerate_blas(ModelOptions(), 2)
