"""Verifies one model, section by section."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import jinja2
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.conversion import Step
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.verification import Finding, Report, Section, SectionName, Verification
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify import files, numbers, questions, template, tokens, tools, weights
from pippin.engines.verify.asking import Served
from pippin.engines.verify.files import fault
from pippin.engines.verify.folder import Folder

Tell = Callable[[Step], None]
WITH_TOKENIZER: Final = ("language", "embeddings", "reranking")


class Verifier:
    """What is known of one model while its sections are checked."""

    def __init__(self, spec: WorkerSpec, asked: Verification, tell: Tell) -> None:
        self._spec = spec
        self._asked = asked
        self._tell = tell
        self._kind = spec.info.kind
        self._folder = Folder.read(Path(spec.info.path or ""))

    def report(self) -> Report:
        """Check each section. A section that fails is a finding, and the next one is checked all the same.

        Raises `ServerError` for another model that can't be loaded.
        """
        assert self._of_other is not None
        return Report(
            model=self._spec.info.id,
            folder=str(self._folder.path),
            at=int(time.time()),
            sections=tuple(map(self._section, self._asked.sections)),
            machine=f"{platform.system()} {platform.machine()}",
            against=self._asked.against,
        )

    def _section(self, name: SectionName) -> Section:
        self._tell(Step(0, 0, name))
        if name != "files" and self._kind not in (WITH_TOKENIZER if name == "tokens" else ("language",)):
            return Section(name=name, left_out=f"the model is of the kind {self._kind}")
        began = time.monotonic()
        sections = {
            "files": self._files,
            "tokens": self._tokens,
            "template": self._template,
            "numbers": self._numbers,
            "tools": self._tools,
            "questions": self._questions,
        }
        try:
            section = sections[name]()
        except ServerError as error:
            section = Section(name=name, findings=(_broken(error),))
        return replace(section, seconds=round(time.monotonic() - began, 1))

    def _files(self) -> Section:
        found = [*files.check(self._folder, self._kind), *weights.check(self._folder, self._read)]
        if self._asked.against is not None:
            found += weights.partly_changed(self._folder, Folder.read(Path(self._asked.against)))
        figures = {"weight files": len(self._folder.headers), "tensors": len(self._folder.tensors)}
        return Section(name="files", findings=tuple(found), figures=figures)

    def _read(self, done: int, total: int) -> None:
        self._tell(Step(done, total, "reading the weights"))

    def _tokens(self) -> Section:
        options = convert(self._spec.options, ModelOptions)
        tokenizer = Tokenizer.load(self._folder.path, trust_remote_code=options.trust_remote_code)
        turn_end = ""
        if self._kind == "language" and "default" in tokenizer.chat_templates:
            written = self._written()
            tokenizer, turn_end = written.tokenizer, written.converter.traits.turn_end
        found = tuple(tokens.check(self._folder, tokenizer, self._kind, turn_end))
        return Section(name="tokens", findings=found, figures={"texts": len(tokens.texts())})

    def _template(self) -> Section:
        try:
            written = self._written()
        except KeyError:
            return Section(name="template", left_out="there is none: the model takes no conversations")
        found = tuple(template.check(written))
        outcomes = template.outcomes(written)
        figures = {
            "conversations kept": sum(each == "kept" for each in outcomes.values()),
            "changed": sum(each != "kept" and "refused" not in each for each in outcomes.values()),
            "refused": sum("refused" in each for each in outcomes.values()),
            "tool calls": written.tools or "none",
            "reasoning": "none" if written.reasoning is None else written.reasoning.name,
        }
        return Section(name="template", findings=found, figures=figures)

    def _numbers(self) -> Section:
        against = None if self._asked.against is None else Path(self._asked.against)
        found = numbers.check(self._served, self._folder.path, against)
        return Section(name="numbers", findings=found.findings, figures=found.figures)

    def _tools(self) -> Section:
        if not self._served.preparer.info.capabilities.chat:
            return Section(name="tools", left_out="the model takes no conversations")
        own, other = tools.measure(self._served), self._of_other.counts
        offers = self._written().converter.traits.tools
        found = tuple(tools.check(own, other, offers_tools=offers))
        return Section(name="tools", findings=found, figures=own.figures | _of_another(other))

    def _questions(self) -> Section:
        own, other = questions.measure(self._served, self._count), self._of_other.answers
        found = tuple(questions.check(own, other))
        return Section(name="questions", findings=found, figures=own.figures | _of_another(other))

    def _count(self, done: int, total: int) -> None:
        self._tell(Step(done, total, "asking questions"))

    @cached_property
    def _served(self) -> Served:
        return Served.open(self._spec)

    @cached_property
    def _of_other(self) -> "_OfOther":
        """What the other model does, which is loaded and closed before this one is loaded."""
        if self._asked.against is None or not {"tools", "questions"} & set(self._asked.sections):
            return _OfOther()
        self._tell(Step(0, 0, "asking the other model"))
        info = ModelInfo(id="the other model", kind="language", path=self._asked.against)
        served = Served.open(replace(self._spec, info=info))
        try:
            return _OfOther(
                tools.measure(served) if "tools" in self._asked.sections else None,
                questions.measure(served, self._count) if "questions" in self._asked.sections else None,
            )
        finally:
            served.engine.close()

    def _written(self) -> template.Written:
        """The template as the server uses it. Raises `ServerError` for a broken one, `KeyError` where there is none."""
        tokenizer = open_preparer(self._spec).tokenizer
        try:
            return template.Written.open(tokenizer, self._spec.info.architecture)
        except jinja2.TemplateSyntaxError as error:
            raise ServerError("load_failed", f"The chat template is broken: {error.message}.") from error


@dataclass(frozen=True)
class _OfOther:
    """What was measured of the model to compare with."""

    counts: tools.Counts | None = None
    answers: questions.Answers | None = None


def _of_another(other: "tools.Counts | questions.Answers | None") -> dict[str, Any]:
    return {} if other is None else {f"{name}, of the other": value for name, value in other.figures.items()}


def verify(spec: WorkerSpec, asked: Verification, tell: Tell) -> Report:
    """Check the sections that are asked for."""
    return Verifier(spec, asked, tell).report()


def _broken(error: ServerError) -> Finding:
    return fault("unusable", error.report.message, "Pippin does not serve the model.", "pippin pull ORG/NAME")
