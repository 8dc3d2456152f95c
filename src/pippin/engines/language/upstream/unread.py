"""Fields of config.json that change what a model computes, and that mlx-lm's class of an architecture does not read."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from pippin.engines.language.configuration import Config

COMPUTES: Final = (
    *("hidden_act", "hidden_activation", "activation_function"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
    *(
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "clip_qkv",
        "logit_scale",
    ),
    *("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"),
    *("num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor", "scoring_func", "topk_method"),
    *("n_group", "topk_group"),
)
"""Such fields of transformers' configurations. Those that change the tensors of a model are found by these."""

ACTIVATIONS: Final = tuple(name for name in COMPUTES if name.startswith(("hidden_act", "activation")))


def refuse_unread(config: Config, read: Iterable[str]) -> None:
    """Raises `ValueError` for a field that a class does not `read` and whose value is not the architecture's usual one,
    which the class takes for granted."""
    usual = _usual(str(config.get("model_type")))
    for name in set(COMPUTES) & usual.keys() & config.keys() - set(read):
        found, expected = _plain(name, config[name]), _plain(name, usual[name])
        if found is not None and found != expected:
            raise ValueError(
                f"{name} {config[name]!r} of its config.json is not read by mlx-lm's class of this architecture, which "
                f"computes with {usual[name]!r}"
            )


def _plain(name: str, value: Any) -> Any:
    # Publishers and libraries name the forms of GELU for each other: Gemma says gelu and means gelu_pytorch_tanh.
    return "gelu" if name in ACTIVATIONS and str(value).startswith("gelu") else value


@cache
def _usual(kind: str) -> Config:
    """The values of an architecture's configuration in transformers; empty for one that it does not know."""
    return CONFIG_MAPPING[kind]().to_dict() if kind in CONFIG_MAPPING else {}
