"""The projector of MiniCPM-V 4.7, which is that of 4.6."""

from mlx_vlm.models.minicpmv4_7.minicpmv4_7 import Model
from msgspec.structs import replace

from pippin.engines.language.upstream.mlx_vlm import minicpmv4_6

MENDS = tuple(replace(each, original=Model) for each in minicpmv4_6.MENDS)
