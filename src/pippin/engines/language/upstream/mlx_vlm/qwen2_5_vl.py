"""Qwen2.5-VL's films: the positions of frames count time, by `tokens_per_second`. mlx-vlm 0.7.10 counts frames."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.models.qwen2_5_vl.language import LanguageModel
from mlx_vlm.models.qwen2_5_vl.qwen2_5_vl import Model

from pippin.engines.language.upstream.mends import exchanged


class InSeconds(LanguageModel):  # type: ignore[misc]
    def get_rope_index(
        self,
        input_ids: mx.array,
        image_grid_thw: mx.array | None = None,
        video_grid_thw: mx.array | None = None,
        attention_mask: mx.array | None = None,
        second_per_grid_ts: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        """`second_per_grid_ts` [films]: the seconds of each step of their grids, of one prompt alone."""
        found, shift = super().get_rope_index(input_ids, image_grid_thw, video_grid_thw, attention_mask)
        if second_per_grid_ts is None or video_grid_thw is None:
            return found, shift
        vision, table = self.config.vision_config, np.array(found)
        places = np.flatnonzero(np.array(input_ids[0]) == self.config.video_token_id)
        intervals = np.array(second_per_grid_ts, np.float32) * vision.tokens_per_second
        for (steps, height, width), interval in zip(np.array(video_grid_thw), intervals, strict=True):
            size = height * width // vision.spatial_merge_size**2
            own, places = places[: steps * size], places[steps * size :]
            end = table[:, 0, own].max()
            times = (np.arange(steps) * interval).astype(table.dtype)
            table[0, 0, own] = table[0, 0, own[0]] + np.repeat(times, size)
            table[:, 0, own[-1] + 1 :] += table[:, 0, own].max() - end
        return mx.array(table), mx.array([[int(table.max()) + 1 - table.shape[-1]]])


class Timed(Model):  # type: ignore[misc]
    def get_input_embeddings(
        self, input_ids: mx.array, pixel_values: mx.array | None = None, **given: Any
    ) -> Any:
        found = super().get_input_embeddings(input_ids, pixel_values, **given)
        names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
        told = {name: given[name] for name in names if given.get(name) is not None}
        found.position_ids, found.rope_deltas = self.language_model.get_rope_index(
            input_ids, attention_mask=given.get("mask"), **told
        )
        return found


WHY = "positions of a film's frames count frames, and not time"
MENDS = (exchanged(InSeconds, WHY), exchanged(Timed, WHY))
