"""GPT-2 as transformers saves it, with `transformer.` before the names of its weights: mlx-lm 0.32 reads the first
published file alone, which lacks it."""

from mlx_lm.models.gpt2 import Model

from pippin.engines.language.upstream.mends import Mend, storing

MENDS = (
    Mend(
        original=Model,
        why="names that begin with `transformer.` are not read",
        made=storing(
            lambda _, arrays: {name.removeprefix("transformer."): array for name, array in arrays.items()}
        ),
    ),
)
