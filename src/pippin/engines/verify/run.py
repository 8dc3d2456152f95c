"""Verifies one model, section by section."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cached_property
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Final

import jinja2
from msgspec.structs import replace

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.verification import Finding, Report, Section, SectionName, Step, Verification
from pippin.engines import transcription
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.language.text.tokenizer import Tokenizer, ids_in
from pippin.engines.verify import (
    compared,
    files,
    merged,
    numbers,
    questions,
    template,
    tokens,
    tools,
    vectors,
    weights,
)
from pippin.engines.verify.asking import Served
from pippin.engines.verify.findings import finding, helped, names_of
from pippin.engines.verify.folder import Folder
from pippin.engines.verify.reading import opening
from pippin.engines.verify.reading.perplexity import POOR

Tell = Callable[[Step], None]
Found = tuple[Iterable[Finding], dict[str, Any]]
"""The findings of a section, and its figures."""
Others = tuple[tools.Counts | None, questions.Answers | None]
"""What was measured of the model to compare with."""
KINDS: Final = dict.fromkeys(("tokens", "numbers"), ("language", "embeddings", "reranking"))
"""Of which kinds of models a section is, where not of language models alone."""
CHATS: Final = re.compile(r"instruct|chat|(?:^|[-_])(?:it|sft|dpo|rlhf)(?:[-_]|$)", re.IGNORECASE)
TEXT_ONLY: Final = "the model is served for text only: "
"""How the load of a model begins its warning that it takes no media."""


def verify(spec: WorkerSpec, asked: Verification, tell: Tell) -> Report:
    """Check the sections that are asked for. Raises `ServerError` for a model to compare with that can't be loaded."""
    verifier = Verifier(spec, asked, tell, _measured(spec, asked, tell))
    return Report(
        model=spec.info.id,
        folder=spec.info.path or "",
        at=int(time.time()),
        sections=tuple(map(verifier.section, asked.sections)),
        against=asked.against,
    )


def _measured(spec: WorkerSpec, asked: Verification, tell: Tell) -> Others:
    """Measure the other model, which is closed again before the model itself takes memory."""
    computed = {"tools", "questions"} & {*asked.sections}
    if asked.against is None or spec.info.kind != "language" or not computed:
        return None, None
    tell(Step(0, 0, "asking the other model"))
    served = Served.open(_beside(spec, asked.against))
    with closing(served.engine):
        return (
            tools.measure(served) if "tools" in asked.sections and served.chats else None,
            questions.measure(served) if "questions" in asked.sections and served.branches else None,
        )


class Verifier:
    """What is known of one model while its sections are checked."""

    def __init__(self, spec: WorkerSpec, asked: Verification, tell: Tell, other: Others) -> None:
        self._spec = spec
        self._against = None if asked.against is None else Path(asked.against)
        self._tell = tell
        self._counts, self._answers = other
        self._kind = spec.info.kind
        self._folder = Folder.read(Path(spec.info.path or ""))
        self._names = names_of(self._folder, self._against)
        self._unseen: list[str] = []  # why a model that has encoders of media is served without them

    def section(self, name: SectionName) -> Section:
        """Check one section. If that fails, this is a finding too."""
        self._tell(Step(0, 0, name))
        if name != "files" and self._kind not in KINDS.get(name, ("language",)):
            return Section(name=name, left_out=f"the model is of the kind {self._kind}")
        began = time.monotonic()
        figures: dict[str, Any] = {}
        found: Iterable[Finding] = ()
        left_out = ""
        try:
            left_out = self._left_out(name)
            if not left_out:
                found, figures = getattr(self, f"_{name}")()
                found = tuple(found)
            elif name == "template" and CHATS.search(self._spec.info.id):
                found = [finding("template-missing")]
        except ServerError as error:
            found = [finding("unusable", reason=error.report.message)]
        except Exception as error:  # files may hold anything
            found = [finding("ended-early", reason=f"{type(error).__name__}: {error}")]
        return Section(
            name=name,
            findings=tuple(helped(each, self._names) for each in found),
            figures=figures,
            left_out=left_out,
            seconds=round(time.monotonic() - began, 1),
        )

    def _left_out(self, name: SectionName) -> str:
        """Why a section is not checked; empty for one that is."""
        if name in ("template", "tools") and not open_preparer(self._spec).info.capabilities.chat:
            return "the model has no chat template"
        if name == "tools" and not self._written.converter.traits.tools:
            return "the chat template offers no tools"
        scored = self._kind == "language" and name in ("numbers", "questions")
        if scored and not self._served.scores:
            return "the model's library tells no log probabilities"
        if name == "questions" and not self._served.branches:
            return "the caches of the model can't branch"
        return ""

    def _files(self) -> Found:
        found = [*files.check(self._folder, self._kind)]
        found += weights.check(
            self._folder, lambda done, total: self._tell(Step(done // 10**6, total // 10**6, "MB of weights"))
        )
        found += merged.check(self._folder)
        if self._kind == "transcription":
            found += self._heard()
        if self._against is not None and self._kind == "language":
            found += files.compare(self._folder, Folder.read(self._against))
            found += compared.check(self._folder.path, self._against)
        return found, {"weight files": len(self._folder.headers), "tensors": len(self._folder.tensors)}

    def _heard(self) -> Iterator[Finding]:
        """Why a model that hears is not served or does not end, whose files nothing else reads here."""
        told = self._folder.generation
        if never := sorted(ids_in(told.get("eos_token_id")) & ids_in(told.get("suppress_tokens"))):
            yield finding("eos-never", ids=never)
        try:
            transcription.open_engine(
                self._spec, transcription.open_preparer(self._spec), lambda *_: None
            ).close()
        except ServerError as error:
            yield finding("unusable", reason=error.report.message)

    def _tokens(self) -> Found:
        tokenizer, turn_end = Tokenizer.load(self._folder.path), ""
        if self._kind == "language" and tokenizer.chat_templates:
            tokenizer, turn_end = self._written.tokenizer, self._written.converter.traits.turn_end
        if self._kind != "language":
            tokenizer = tokens.of_file(tokenizer, self._folder.path)
        found = [*tokens.check(self._folder, tokenizer, self._kind, turn_end)]
        found += weights.check_rows(self._folder, tokenizer)
        if self._against is not None:
            found += tokens.compare(tokenizer, Tokenizer.load(self._against))
        return found, {"texts": len(tokens.texts())}

    def _template(self) -> Found:
        outcomes = template.outcomes(self._written)
        refused = sum(each.startswith("refused") for each in outcomes.values())
        kept = sum(each == "kept" for each in outcomes.values())
        reasoning = self._written.reasoning
        found = [*template.check(self._written, outcomes)]
        if self._against is not None and (other := Tokenizer.load(self._against)).chat_templates:
            found += template.compare(self._written, self._as_written(other))
        return found, {
            "conversations kept": kept,
            "changed": len(outcomes) - kept - refused,
            "refused": refused,
            "tool calls": self._written.tools or "none",
            "reasoning": "none" if reasoning is None else reasoning.name,
        }

    def _numbers(self) -> Found:
        if self._kind == "reranking":
            return vectors.check_reranker(vectors.Encoding.open(self._spec))
        if self._kind == "embeddings":
            spec = None if self._against is None else _beside(self._spec, str(self._against))
            against = None if spec is None else vectors.Encoding.open(spec)
            return vectors.check_embeddings(vectors.Encoding.open(self._spec), against)
        adapted = bool(self._spec.options.get("adapter_path"))
        found, figures = numbers.check(self._served, self._folder.path, self._against, adapted=adapted)
        # A model that has not learnt to read begins answers with anything.
        if self._served.chats and figures.get("bits a byte", math.inf) < POOR:
            found += opening.check(self._served, self._written)
        return [*found, *(finding("text-only", reason=why) for why in self._unseen)], figures

    def _tools(self) -> Found:
        own = tools.measure(self._served, lambda done, total: self._tell(Step(done, total, "tool calls")))
        return tools.check(own, self._counts), own.figures | _of_another(self._counts)

    def _questions(self) -> Found:
        own = questions.measure(self._served, lambda done, total: self._tell(Step(done, total, "questions")))
        return questions.check(own, self._answers), own.figures | _of_another(self._answers)

    @cached_property
    def _served(self) -> Served:
        log, said = logging.getLogger("pippin"), BufferingHandler(1000)
        log.addHandler(said)
        try:
            return Served.open(self._spec)
        finally:
            log.removeHandler(said)
            told = (record.getMessage() for record in said.buffer)
            self._unseen += [each.removeprefix(TEXT_ONLY) for each in told if each.startswith(TEXT_ONLY)]

    @cached_property
    def _written(self) -> template.Written:
        """The template as the server uses it. Raises `ServerError` for a broken one."""
        return self._as_written(open_preparer(self._spec).tokenizer)

    def _as_written(self, tokenizer: Tokenizer) -> template.Written:
        try:
            return template.Written.open(tokenizer, self._spec.info.architecture)
        except jinja2.TemplateSyntaxError as error:
            raise ServerError("load_failed", f"The chat template is broken: {error.message}.") from error


def _beside(spec: WorkerSpec, folder: str) -> WorkerSpec:
    """The model in another folder, with the options of this one."""
    return replace(spec, info=ModelInfo(id="other", kind=spec.info.kind, path=folder))


def _of_another(other: tools.Counts | questions.Answers | None) -> dict[str, Any]:
    return {} if other is None else {f"{name}, of the other": value for name, value in other.figures.items()}
