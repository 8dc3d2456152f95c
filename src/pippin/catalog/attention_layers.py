"""Which layers keep keys and values of all tokens, told from a model's configuration: those that `kv_bits` packs."""

from typing import Any

RECURRENT = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv7"})  # families without any
WITH_SINKS = frozenset({"gpt_oss"})  # attention with sinks takes no packed keys
FULL = frozenset({"full_attention", "attention", "global_attention"})


def full_attention_layers(config: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Their places, from 0, and the count of all layers."""
    text: dict[str, Any] = config.get("text_config") or config
    count = int(text.get("num_hidden_layers") or text.get("n_layers") or text.get("n_layer") or 0)
    family = text.get("model_type") or config.get("model_type")
    if family in RECURRENT or family in WITH_SINKS:
        return (), count
    return tuple(place for place in range(count) if _is_full(text, place)), count


def _is_full(config: dict[str, Any], place: int) -> bool:
    match config:
        case {"layer_types": [*types]} if place < len(types):
            return types[place] in FULL
        case {"full_attn_idxs": [*places]}:
            return place in places
        case {"hybrid_override_pattern": str(kinds)} if place < len(kinds):
            return kinds[place] == "*"
        case {"full_attention_interval": int(every)}:
            return (place + 1) % every == 0
        case {"sliding_window_pattern": int(every), "sliding_window": int()}:
            return (place + 1) % every == 0
        case {"attn_layer_period": int(every), "attn_layer_offset": int(first)}:
            return place % every == first
        case _:
            return True
