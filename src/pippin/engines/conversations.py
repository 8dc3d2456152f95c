"""What embedding models and rerankers have alike: how they are prepared and loaded, and conversations as their inputs.

A conversation is rendered by the chat template, with media encoded. Media are supported for mlx-vlm's models that run
in the language engine's batches. A conversation with media is computed alone, in one pass; encoded media are cached for
later requests.
"""

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec

from pippin.config.errors import install_command
from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.published import fields_in
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.engines.base import LoadProgress
from pippin.engines.device import loading
from pippin.engines.encoding import EncoderInput, EncodingTokenizer, cast_weights
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.model.encoders import attends_both_ways, encoder_of
from pippin.engines.language.model.explaining import UNMATCHED, explain
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.language.vision.checkpoint import takes_media
from pippin.engines.language.vision.encoder import VisionEncoder
from pippin.engines.language.vision.media import TEXT_ONLY, PromptMedia
from pippin.engines.language.vision.model import VisionModel
from pippin.engines.language.vision.trial import is_faithful

IN_MESSAGES = re.compile(r"messages\[\d+\](\.content)?(\[\d+\])?|\bmessages\b")
"""How the language preparer names a place in a conversation."""


class ConversationPreparer:
    """Renders and tokenizes conversations, and prepares their media. Several threads may use it at once."""

    def __init__(self, spec: WorkerSpec, limit: int) -> None:
        """`limit`: the most tokens of a conversation. Raises `ServerError("load_failed")`."""
        # A vector has no place for a warning, so nothing is left out of what it stands for.
        options = {**spec.options, "unreadable_media": "refuse"}
        self._language = open_preparer(msgspec.structs.replace(spec, options=options))
        self._limit = limit

    def sequence(
        self, messages: tuple[Message, ...], field: str | None = None, *, continues: bool = False
    ) -> EncoderInput:
        """The tokens and media of a conversation. It ends where the assistant's answer would begin, or, with
        `continues`, at the end of the last message's text.

        Refusals name `field` if the conversation was made from that field and the client sent no messages.
        """
        request = GenerationRequest(
            model="", messages=messages, max_tokens=0, continue_final=continues, context_limit=self._limit
        )
        try:
            job = self._language.prepare("", Generate(request))
        except ServerError as error:
            if field is None:
                raise
            report = error.report
            raise ServerError(report.kind, IN_MESSAGES.sub(field, report.message), field) from None
        assert isinstance(job, LanguageJob)
        assert job.media is None or isinstance(job.media, PromptMedia)
        return EncoderInput(job.prompt, media=job.media)

    def loaded(self, model: nn.Module) -> None:
        """Test which media the loaded model computes correctly, and take those from now on."""
        is_vision = isinstance(model, VisionModel)
        media = self._language.media.tested(partial(is_faithful, model)) if is_vision else TEXT_ONLY
        self._language.loaded(media)

    def described(self, info: ModelInfo) -> ModelInfo:
        """The model's info with the media that it takes."""
        taken = self._language.info.capabilities
        capabilities = msgspec.structs.replace(
            info.capabilities, images=taken.images, video=taken.video, audio=taken.audio
        )
        return msgspec.structs.replace(info, capabilities=capabilities)


class ConversationStates:
    """Passes of a vision-language model over conversations with media, one at a time."""

    def __init__(self, model: VisionModel, options: ModelOptions) -> None:
        language = model.inner.language_model
        if getattr(language, "lm_head", 0) is None:  # mlx-vlm's models for embeddings have none
            language.lm_head = nn.Identity()
        self._model = model
        self._encoder = VisionEncoder(model, options.vision_cache_size)
        words = int(model(mx.array([[1]]), model.make_cache()).shape[-1])
        self._head = Head(model, words)

    def states(self, sequence: EncoderInput) -> mx.array:
        """The states after the last norm [tokens, hidden]."""
        self._head.watch(True)
        logits = self._logits(sequence)
        projected, self._head.seen = self._head.seen, []
        self._head.watch(False)
        # A model whose head was removed returns states instead of logits.
        return (projected[-1] if projected else logits)[0]

    def last_logits(self, sequence: EncoderInput) -> mx.array:
        """The logits [vocabulary] after the last token."""
        last = len(sequence.tokens) - 1
        with self._head.only([last]):
            return self._head.last(self._logits(sequence), [last])[0]

    def _logits(self, sequence: EncoderInput) -> mx.array:
        tokens, media = sequence.tokens, sequence.media
        ids, cache = mx.array([tokens]), self._model.make_cache()
        if media is None:
            return self._model(ids, cache)
        inputs = self._encoder.open(tokens, media)
        while (medium := inputs.missing(0, len(tokens))) is not None:
            inputs.encode(medium, wait=True)
        return self._model(ids, cache, inputs=inputs.inputs(tokens, 0))


class EncodingPreparer:
    """The folder of a model that encodes, its tokenizer, and how long its texts may be."""

    counts = ""  # what the limit of a text counts, where it is more than the text

    def __init__(self, spec: WorkerSpec) -> None:
        self.folder = Path(spec.info.path or "")
        self.options = convert(spec.options, ModelOptions)
        self.info: ModelInfo = spec.info
        self.tokenizer = EncodingTokenizer(self.folder, self.options.embedding_max_length)
        self.config = self.tokenizer.config
        self.spec = spec
        said: dict[str, Any] = {"prompts": dict[str, str], "default_prompt_name": str, "model_type": str}
        self.sentences = fields_in(self.folder, "config_sentence_transformers.json", **said)
        self.prompts: dict[str, str] = self.sentences["prompts"] or {}
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
            cast_weights(model, self.spec)
        except ImportError as error:
            needed = install_command("embeddings")
            raise ServerError("load_failed", f"{what} need mlx-vlm, which reads them: {needed}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = " as a reranker" if classifies else ""
            text = f"{self.info.id} can't be loaded{wanted}: {error}"
            text = explain(self.info, error, "mlx-vlm") if UNMATCHED.fullmatch(str(error)) else text
            raise ServerError("load_failed", text) from error
        return model

    def load_language_model(
        self, progress: LoadProgress, reading: Reading
    ) -> tuple[nn.Module, ConversationStates | None]:
        """The language model of which the states count, and its passes over conversations, if it sees. Raises
        `ServerError("load_failed")`."""
        threads = None if attends_both_ways(self.config) else self.spec.threads or os.cpu_count() or 1
        with loading(self.spec) as plan:
            model = load_weights(self.info, plan, progress, reading, kernel_threads=threads)[0]
        if self.conversations is None:
            return model, None
        # Before media are tried: models for embeddings get the head there that they lack.
        seen = ConversationStates(model, self.options) if isinstance(model, VisionModel) else None
        self.conversations.loaded(model)
        self.info = self.conversations.described(self.info)
        return model, seen

    def too_long(self, found: str, param: str) -> ServerError:
        """The refusal of an input; `found` says how long what is."""
        return ServerError(
            "context_length_exceeded",
            f"{found}; {self.info.id} takes {self.tokenizer.limit}{self.counts}. "
            "Send less, or `truncate`: true, or start the server with --embedding-overflow truncate.",
            param,
        )
