"""Which layers of a language model attend to everything, by its configuration: what KV quantisation is for."""

from msgspec import Struct

from pippin.catalog.folder_files import Json, table, text, whole

FULL = ("full_attention", "attention")


class Layers(Struct, frozen=True, kw_only=True):
    total: int
    full: int  # those of full attention
    recurrent: bool  # others keep state that can't be taken back


def layers_of(config: Json) -> Layers | None:
    """None where the configuration does not say."""
    own = table(config.get("text_config")) or config
    total = whole(own.get("num_hidden_layers"))
    if total is None:
        return None
    kinds = own.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == total:
        names = [text(kind) or "" for kind in kinds]
        others = {name for name in names if name not in FULL and "sliding" not in name}
        return Layers(total=total, full=sum(name in FULL for name in names), recurrent=bool(others))
    places = own.get("full_attn_idxs")
    if isinstance(places, list):
        return Layers(total=total, full=len(places), recurrent=True)
    if interval := whole(own.get("full_attention_interval")):
        return Layers(total=total, full=total // interval, recurrent=True)
    if whole(own.get("sliding_window")) and own.get("use_sliding_window") is not False:
        pattern = whole(own.get("sliding_window_pattern"))
        return None if pattern is None else Layers(total=total, full=total // pattern, recurrent=False)
    if whole(own.get("num_attention_heads")) is None or "state_size" in own or "ssm_cfg" in own:
        return None
    return Layers(total=total, full=total, recurrent=False)
