"""What the preparers of embedding models and rerankers have alike, and how both load their models."""

import os
from pathlib import Path

import mlx.nn as nn

from pippin.config.errors import install_command
from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.published import find_json
from pippin.engines.base import LoadProgress
from pippin.engines.conversations import ConversationPreparer, ConversationStates
from pippin.engines.device import configure, decide, find_facts
from pippin.engines.encoding import EncodingTokenizer, cast_weights
from pippin.engines.language.model.encoders import attends_both_ways, encoder_of
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.vision.checkpoint import takes_media
from pippin.engines.language.vision.model import VisionModel


class EncodingPreparer:
    """The folder of a model that encodes, its tokenizer, and how long its texts may be."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.folder = Path(spec.info.path or "")
        self.options = convert(spec.options, ModelOptions)
        self.info: ModelInfo = spec.info
        self.tokenizer = EncodingTokenizer(self.folder, self.options.embedding_max_length)
        self.config = self.tokenizer.config
        self.threads = spec.threads or os.cpu_count() or 1
        self.sentences = find_json(self.folder / "config_sentence_transformers.json") or {}
        self.conversations: ConversationPreparer | None = None

    def see(self, spec: WorkerSpec) -> None:
        """Prepare conversations as well, if the model takes media."""
        if takes_media(self.config):
            self.conversations = ConversationPreparer(spec, self.tokenizer.limit)
            self.info = self.conversations.described(self.info)

    def load_encoder(self, *, classifies: bool = False) -> nn.Module:
        """The encoder, with its weights in memory. Raises `ServerError("load_failed")`."""
        what = "Rerankers" if classifies else "Models that embed text"
        try:
            model = encoder_of(self.folder, self.config, classifies=classifies)
            cast_weights(model, self.options)
        except ImportError as error:
            needed = install_command("embeddings")
            raise ServerError("load_failed", f"{what} need mlx-vlm, which reads them: {needed}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = " as a reranker" if classifies else ""
            raise ServerError("load_failed", f"{self.info.id} can't be loaded{wanted}: {error}") from error
        return model

    def load_language_model(
        self, progress: LoadProgress, reading: Reading
    ) -> tuple[nn.Module, ConversationStates | None]:
        """The language model of which the states count, and its passes over conversations, if it sees. Raises
        `ServerError("load_failed")`."""
        plan = decide(find_facts(), self.options)
        configure(plan)
        threads = None if attends_both_ways(self.config) else self.threads
        model = load_weights(self.info, plan, progress, reading, kernel_threads=threads)[0]
        if self.conversations is None:
            return model, None
        # Before media are tried: models for embeddings get the head there that they lack.
        seen = ConversationStates(model, self.options) if isinstance(model, VisionModel) else None
        self.conversations.loaded(model)
        self.info = self.conversations.described(self.info)
        return model, seen

    def too_long(self, found: str, param: str, whole: str = "") -> ServerError:
        """The refusal of an input; `found` says how long what is, `whole` what the limit counts."""
        return ServerError(
            "context_length_exceeded",
            f"{found}; {self.info.id} takes {self.tokenizer.limit}{whole}. "
            "Send less, or `truncate`: true, or start the server with --embedding-overflow truncate.",
            param,
        )
