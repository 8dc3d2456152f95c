"""The preparer of language models, which makes jobs from requests, beside the step loop."""

import contextlib
import hashlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core import parameters
from pippin.core.conversation import Tool
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Counted, Detokenized, Event, Rendered, Tokenized
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Detokenize, Generate, RenderTemplate, Task, Tokenize, attachments
from pippin.engines.attachments.reading import AttachmentReader
from pippin.engines.base import NeedsWeightsError
from pippin.engines.language.constraints.grammar import CompiledGrammar, GrammarCompiler
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prompt import infill
from pippin.engines.language.prompt.rendering import PromptRenderer, RenderedPrompt, fit_prompt, too_long
from pippin.engines.language.text.tokenizer import Tokenizer, TooLong
from pippin.engines.language.vision.checkpoint import placeholder_tokens, read_config, takes_media
from pippin.engines.language.vision.media import TEXT_ONLY, TextOnly, WholePrompt
from pippin.engines.language.vision.processors import load_processor, load_prompt_processor
from pippin.engines.refusals import refused
from pippin.output import checking, formats
from pippin.output.checking import repeated_calls
from pippin.output.reasoning_formats import ReasoningFormat
from pippin.output.tool_format import History, ToolFormat

if TYPE_CHECKING:
    import mlx.core as mx


log = logging.getLogger(__name__)

UNKNOWN_CONTEXT_WINDOW = 1 << 20
"""The context window, in tokens, of a model whose configuration names none."""

ANSWER_DIVISOR = 4
"""With `overflow: truncate`, at most the context window divided by this is kept free for the answer."""

DEFAULT_TOOL_FORMAT = "json_tools"
"""The tool-call format of models whose template does not write tools."""

MOST_PREDICTED, MOST_CHARACTERS = 1 << 15, 8  # tokens of a prediction, and characters of each
MOST_COUNTED = 1_000_000  # tokens of a text that is only counted or tokenized


class LanguagePreparer:
    """The preparer of one language model. Several threads may use it at once."""

    def __init__(self, spec: WorkerSpec, tokenizer: Tokenizer) -> None:
        """Raises `ServerError("load_failed")` for a broken chat template, or a missing package of its media.

        `tokenizer` has the chat templates to use.
        """
        self.options = convert(spec.options, ModelOptions)
        sources = tokenizer.chat_templates
        source = sources.get("default", "")
        detected = formats.detect(source, spec.info.architecture)
        options = self.options
        own_tools = options.tool_call_parser
        self._tools = formats.tool_format(own_tools) if own_tools else detected.tools
        self._reasoning = _reasoning_of(options, detected.reasoning, sources.values())
        markers = [
            *(self._tools.markers if self._tools else ()),
            *(self._reasoning.markers if self._reasoning else ()),
        ]
        self.tokenizer = tokenizer.with_markers("\0".join([*sources.values(), *markers]))
        self._attachments = AttachmentReader(options.unreadable_media)
        config = read_config(Path(spec.info.path or ""))
        self.may_take_media = takes_media(config)
        self._placeholders = frozenset().union(*placeholder_tokens(config).values())
        self._loaded = False
        self.finds_partings = False  # set once the loaded model turns out to have a state that cannot be cut
        self._renderer = self.open_renderer(load_processor(spec.info, options, self.tokenizer))
        # Where the template does not write tools, a system message offers them and shows a call in the format.
        shown = self._renderer.offers_tools or own_tools
        if self._tools is not None and self._tools.history.write is None and not shown:
            self._tools = formats.tool_format(DEFAULT_TOOL_FORMAT)
            self._renderer = self.open_renderer(self.media)
        ending = self.tokenizer.single(self._renderer.turn_end)
        # Otherwise a chat model whose configuration does not name the end of a turn would write the next turn, too.
        if ending is not None:
            self.tokenizer.eos |= {ending}
        self._grammars = GrammarCompiler(self.tokenizer)
        self.make_ahead = self._grammars.open_tokens
        self._spacing = options.json_spacing
        ends = map(self.tokenizer.single, infill.ENDS)
        self._infill_ends = frozenset(token for token in ends if token is not None)
        longest = spec.info.context_window or UNKNOWN_CONTEXT_WINDOW
        self.context_window = min(longest, options.context_length or longest)
        self._info = spec.info

    def prepare(self, id: str, task: Task) -> LanguageJob | tuple[Event, ...]:
        try:
            match task:
                case Generate(request) | CountTokens(request) | RenderTemplate(request) if self._must_wait(
                    request
                ):
                    raise NeedsWeightsError
                case Generate(request):
                    return self._decision_job(id, request) if request.decisions else self._job(id, request)
                case CountTokens(request):
                    return (Counted(len(self._counted(request).tokens)),)
                case RenderTemplate(request):
                    prompt = self._counted(request)
                    return (Rendered(prompt.text, prompt.tokens),)
                case Tokenize(text, add_special_tokens, with_pieces):
                    tokens = self.tokenizer.encode(
                        text, add_special_tokens=add_special_tokens, most=MOST_COUNTED
                    )
                    pieces = tuple(map(self.tokenizer.raw, tokens)) if with_pieces else ()
                    return (Tokenized(tuple(tokens), pieces),)
                case Detokenize(tokens):
                    self.tokenizer.check(tokens, "tokens", embedded=False)
                    return (Detokenized(self.tokenizer.decode(tokens)),)
                case _:
                    raise AssertionError("The task is for a model of another kind.")
        except TooLong as error:
            message = f"The text has {error.least} tokens or more; send at most {MOST_COUNTED} at a time."
            raise ServerError("too_large", message) from None

    @property
    def media(self) -> TextOnly:
        """How media become part of a prompt."""
        return self._renderer.media

    def find_prompt_processor(self, evaluate: "Callable[[WholePrompt], mx.array]") -> TextOnly:
        """The processor of prompts with all their media, if the loaded model responds to media of any modality in
        them, else `TEXT_ONLY`.

        `evaluate` returns what the model gives after a prompt [vocabulary].
        """
        found = load_prompt_processor(self._info, self.options, self.tokenizer)
        if found is None:
            return TEXT_ONLY
        from pippin.engines.language.vision.prompt_processing import try_modalities

        return found if try_modalities(found, self.open_renderer, evaluate) else TEXT_ONLY

    def loaded(self, media: TextOnly) -> None:
        """Prepare requests with media from now on: the weights are loaded, and take what `media` makes of prompts."""
        self._renderer = self.open_renderer(media)
        self._loaded = True

    def _must_wait(self, request: GenerationRequest) -> bool:
        """Whether the loaded model decides how the request is prepared: it has media, or messages for a model whose
        chat template may come with its media processor."""
        if self._loaded or not self.may_take_media or not request.messages:
            return False
        return not self.tokenizer.chat_templates or any(attachments(request.messages))

    def _readable(
        self, request: GenerationRequest, render: Callable[[GenerationRequest], RenderedPrompt]
    ) -> tuple[RenderedPrompt, tuple[str, ...]]:
        """What `render` returns for the request without attachments that this model can't take, and warnings of them.

        Raises `ServerError`.
        """
        if not any(attachments(request.messages or ())):
            return render(request), ()
        # A model that takes pictures and no video is shown frames of it.
        rate = self.media.frames
        readable = self._attachments.read(request, self.media.modalities | ({"video"} if rate else set()))
        while True:
            request = readable.request
            try:
                if rate is not None:
                    from pippin.engines.language.vision.films.frames import as_frames

                    request = msgspec.structs.replace(
                        request, messages=as_frames(request.messages or (), rate)
                    )
                return render(request), readable.warnings
            except ServerError as error:
                if not readable.leave_out_for(error.report):
                    raise

    def _counted(self, request: GenerationRequest) -> RenderedPrompt:
        offering = msgspec.structs.replace(request, tools=self._offered(request))
        return self._readable(offering, partial(self._renderer.prompt, most=MOST_COUNTED))[0]

    def _decision_job(self, id: str, request: GenerationRequest) -> LanguageJob:
        window = self.context_window
        try:
            prompt, warnings = self._readable(request, partial(self._renderer.decisions, most=window))
        except TooLong as error:
            raise too_long(f"{error.least} tokens or more", window, request) from None
        self._check_prompt(prompt, request)
        for branch in prompt.branches:
            self.tokenizer.check(
                [*branch.tokens, *(token for label in branch.labels for token in label)], "questions"
            )
        longest = len(prompt.tokens) + max(branch.longest for branch in prompt.branches)
        if longest > window:
            raise too_long(f"{longest} tokens", window, request)
        used = len(prompt.tokens) + sum(len(branch.tokens) for branch in prompt.branches)
        return LanguageJob(
            id=id,
            request=request,
            accepted=Accepted(used, warnings + prompt.warnings),
            prompt=prompt.tokens,
            branches=prompt.branches,
            max_tokens=0,
            created=time.monotonic(),
            key=cache_key(request),
            media=prompt.media,
        )

    def _job(self, id: str, request: GenerationRequest) -> LanguageJob:
        check_numbers(request, self.tokenizer)
        request = as_published(request, self.tokenizer)
        offered = self._offered(request)
        checking.prepare(request.output_format, offered)
        asked = request.max_tokens
        window = min(self.context_window, request.context_limit or self.context_window)
        reserve = min(1 if asked is None else asked, max(window // ANSWER_DIVISOR, 1))
        fit = partial(fit_prompt, self._renderer, window, reserve, self.finds_partings)
        prompt, warnings = self._readable(msgspec.structs.replace(request, tools=offered), fit)
        self._check_prompt(prompt, request)
        free = window - len(prompt.tokens)
        if free < 1 and asked != 0:
            raise too_long(f"{len(prompt.tokens)} tokens", window, request)
        tool_format = self._tool_format(request) if not prompt.raw else None
        reasoning = plan_reasoning(self._reasoning, prompt, request, self.tokenizer)
        ends = self.tokenizer.eos | (self._infill_ends if request.suffix is not None else frozenset())
        stops = request.stop + (tool_format.stops if tool_format and offered else ())
        return LanguageJob(
            id=id,
            request=request,
            accepted=Accepted(len(prompt.tokens), warnings + prompt.warnings + repeated_calls(request)),
            prompt=prompt.tokens,
            prompt_text=prompt.text if request.echo else "",
            raw_prompt=prompt.raw,
            max_tokens=max(min(free, free if asked is None else asked), 0),
            eos=frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else ends),
            pins=prompt.pins,
            partings=prompt.partings,
            spares=prompt.spares,
            thinking_open=reasoning.opened,
            may_think=reasoning.may_open,
            thinking_start=reasoning.start,
            thinking_budget=request.thinking.budget,
            thinking_end=reasoning.end,
            grammar=self._grammar(request, offered, tool_format, reasoning),
            grammar_has_reasoning=reasoning.format is not None and reasoning.format.in_grammar is not None,
            tools=request.tools if request.tool_choice.mode == "none" else offered,
            tool_format=tool_format,
            reasoning_format=reasoning.format,
            stops=stops,
            seed=request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63),
            created=time.monotonic(),
            key=cache_key(request),
            media=prompt.media,
            prediction=self._prediction(request),
        )

    def _check_prompt(self, prompt: RenderedPrompt, request: GenerationRequest) -> None:
        """Raises `ServerError` for a token that the model has no embedding for. Features replace those of media."""
        tokens = prompt.tokens
        if prompt.media is not None:
            # Some processors give features ids beyond the vocabulary, which no text has.
            known = range(self.tokenizer.size)
            tokens = tuple(token for token in tokens if token in known and token not in self._placeholders)
        self.tokenizer.check(tokens, "prompt" if request.messages is None else "messages")

    def _prediction(self, request: GenerationRequest) -> tuple[int, ...]:
        if request.prediction is None:
            return ()
        # Cut before it is tokenized: a long text would keep other requests waiting.
        text = request.prediction[: MOST_PREDICTED * MOST_CHARACTERS]
        tokens = self.tokenizer.encode(text)[:MOST_PREDICTED]
        return tuple(itertools.takewhile(lambda token: token < self.tokenizer.rows, tokens))

    def _offered(self, request: GenerationRequest) -> tuple[Tool, ...]:
        """The tools that the request's `tool_choice` leaves on offer. Raises `ServerError` naming `tool_choice` where a
        call is asked for and no server of tools had any."""
        choice = request.tool_choice
        match choice.mode:
            case "none":
                return ()
            case "required" if not request.tools:
                raise refused("tool_choice", "asks for a call, but 'tools' is empty.")
            case _:
                return tuple(tool for tool in request.tools if not choice.names or tool.name in choice.names)

    def _tool_format(self, request: GenerationRequest) -> ToolFormat | None:
        """The tool-call format of the request, else the model's, else the default one if there are tools."""
        if request.tool_format is not None:
            return formats.tool_format(request.tool_format)
        if self._tools is None and request.tools:
            return formats.tool_format(DEFAULT_TOOL_FORMAT)
        return self._tools

    def _grammar(
        self,
        request: GenerationRequest,
        offered: tuple[Tool, ...],
        tool_format: ToolFormat | None,
        reasoning: "ReasoningPlan",
    ) -> CompiledGrammar | None:
        """The grammar that the output format, `tool_choice` and strict tools ask for, or None if they ask for none."""
        wanted = request.output_format
        required = request.tool_choice.mode == "required"
        called = tool_format is not None and bool(offered)
        if called and required:
            wanted = None
        constrained = called and (required or wanted is not None or any(tool.strict for tool in offered))
        if wanted is None and not constrained:
            return None
        param = "response_format" if wanted is not None else "tools"
        thinks = reasoning.opened or reasoning.may_open

        def compiled(tools: tuple[Tool, ...]) -> CompiledGrammar:
            calls = None
            if constrained and tool_format is not None:
                calls = tool_format.grammar(
                    tools,
                    required=required or wanted is not None,
                    parallel=request.parallel_tool_calls,
                    special=self._grammars.special_id,
                )
            return self._grammars.compile(
                wanted,
                calls,
                reasoning=reasoning.format,
                thinks=thinks,
                spacing=request.json_spacing or self._spacing,
                param=param,
            )

        try:
            return compiled(offered)
        except ServerError:
            enforceable = tuple(map(self._grammars.enforceable, offered)) if constrained else offered
            if enforceable != offered:
                with contextlib.suppress(ServerError):
                    return compiled(enforceable)
            raise  # it names a place in the client's own schema

    def open_renderer(self, media: TextOnly) -> PromptRenderer:
        """A renderer of prompts with these media. Raises `ServerError("load_failed")` for a broken chat template."""
        defaults = dict(self.options.chat_template_kwargs)
        if self.options.enable_thinking is not None:
            defaults |= dict.fromkeys(("enable_thinking", "thinking"), self.options.enable_thinking)
        history = self._tools.history if self._tools else History()
        try:
            return PromptRenderer(
                self.tokenizer, self.tokenizer.chat_templates or media.templates, history, defaults, media
            )
        except jinja2.TemplateSyntaxError as error:
            raise ServerError(
                "load_failed",
                f"The chat template is broken in line {error.lineno}: {error.message}. Give another one with "
                "--chat-template-file.",
            ) from error

    @property
    def info(self) -> ModelInfo:
        """The model's info, completed from its tokenizer, template and media."""
        info, chat, media = self._info, self._renderer.chats, self.media
        modalities = media.modalities if chat else frozenset()
        capabilities = msgspec.structs.replace(
            info.capabilities,
            chat=chat,
            tools=chat,
            reasoning=self._reasoning is not None,
            infill=infill.infill_layout(self.tokenizer) is not None,
            images="image" in modalities,
            video="video" in modalities or (chat and media.frames is not None),
            audio="audio" in modalities,
        )
        return msgspec.structs.replace(
            info,
            capabilities=capabilities,
            context_window=None if self.context_window == UNKNOWN_CONTEXT_WINDOW else self.context_window,
            tool_format=self._tools.name if self._tools else None,
            reasoning_format=self._reasoning.name if self._reasoning else None,
            rewrites=self._renderer.rewrites,
        )


def open_preparer(spec: WorkerSpec) -> LanguagePreparer:
    """Read tokenizer, chat template and processor of a model folder. Raises `ServerError("load_failed")`."""
    if spec.info.path is None:
        raise ServerError("load_failed", f"The model {spec.info.id!r} has no folder.")
    options = convert(spec.options, ModelOptions)
    tokenizer = Tokenizer.load(Path(spec.info.path), trust_remote_code=options.trust_remote_code)
    if options.chat_template_file is not None:
        try:
            tokenizer.chat_templates = {
                "default": Path(options.chat_template_file).expanduser().read_text("utf-8")
            }
        except (OSError, UnicodeDecodeError) as error:
            raise ServerError("load_failed", f"The chat template file can't be read: {error}.") from error
    return LanguagePreparer(spec, tokenizer)


def cache_key(request: GenerationRequest) -> bytes:
    """The prefix cache key: requests share prefixes if they have the same adapter and cache salt."""
    parts = f"{request.adapter or ''}\0{request.cache_salt or ''}"
    return hashlib.blake2b(parts.encode(), digest_size=16).digest()


def as_published(request: GenerationRequest, tokenizer: Tokenizer) -> GenerationRequest:
    """The request with what the checkpoint's generation_config.json asks of each: tokens that are not drawn unless the
    request biases them, texts that end an answer, and the least length of one."""
    asked = tokenizer.asked
    if asked == parameters.OfEveryAnswer():
        return request
    bias = asked.biases(tokenizer.rows, tokenizer.eos) | (request.sampling.logit_bias or {}) or None
    return msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(request.sampling, logit_bias=bias),
        stop=(*request.stop, *asked.stops),
        min_tokens=request.min_tokens or asked.min_new_tokens or 0,
    )


def check_numbers(request: GenerationRequest, tokenizer: Tokenizer) -> None:
    """Raises `ServerError` naming the field of a number that this model can't honour. What no model honours, such as a
    negative count, the API has refused."""
    sampling = request.sampling
    for parameter in parameters.PARAMETERS:
        value: float | None = getattr(sampling, parameter.name)
        if value is not None and not parameter.holds(value):
            raise refused(parameter.public_name, f"is {value:g}; it must be {parameter.range}.")
    if sampling.top_k is not None and sampling.top_k > tokenizer.rows:
        raise refused("top_k", f"is {sampling.top_k}; this model has {tokenizer.rows} tokens.")
    tokenizer.check(sampling.logit_bias or (), "logit_bias")
    tokenizer.check(request.stop_token_ids, "stop_token_ids")
    for field, asked in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
        if asked is not None and asked > tokenizer.rows:
            raise refused(field, f"is {asked}; this model gives {tokenizer.rows} alternatives at most.")


@dataclass(frozen=True)
class ReasoningPlan:
    """The reasoning of one answer. All fields are empty for a model without reasoning and for a raw prompt."""

    format: ReasoningFormat | None = None
    opened: bool = False  # the prompt ends inside reasoning
    may_open: bool = False  # the model may begin reasoning by itself
    start: tuple[int, ...] = ()  # the tokens that begin reasoning
    end: tuple[int, ...] = ()  # the tokens that are forced when the thinking budget is used up


def plan_reasoning(
    found: ReasoningFormat | None, prompt: RenderedPrompt, request: GenerationRequest, tokenizer: Tokenizer
) -> ReasoningPlan:
    """Plan the reasoning of an answer; `found` is the model's own format."""
    if prompt.raw:
        return ReasoningPlan()
    found = with_markers(found, request.thinking.start_marker, request.thinking.end_marker)
    if found is None:
        return ReasoningPlan()
    # The template may have ended the reasoning before it began.
    closed = request.thinking.enabled is False or prompt.text.rstrip().endswith(found.end.rstrip())
    if found.implicit and closed:
        found = replace(found, implicit=False)
    start, end = (tuple(tokenizer.encode(marker)) for marker in (found.start, found.end))
    # A start marker counts only if its first token is an added token. Otherwise the model was not trained on it, and a
    # bracket in a structured answer could be taken for its beginning.
    start = start if start and start[0] in tokenizer.pieces.added else ()
    if request.thinking.budget is not None:
        tokenizer.check(end, "thinking_budget")  # they will be forced
    opened = found.open_in(prompt.text)
    may_open = bool(start) and not (found.implicit or prompt.continued or opened or closed)
    if prompt.continued:
        opened = prompt.continued.rfind(found.start) > prompt.continued.rfind(found.end)
    return ReasoningPlan(found, opened=opened, may_open=may_open, start=start, end=end)


def _reasoning_of(
    options: ModelOptions, detected: ReasoningFormat | None, templates: Iterable[str]
) -> ReasoningFormat | None:
    """How the model writes its reasoning: as the operator says, else as its template shows."""
    parser = options.reasoning_parser
    found = formats.reasoning_format(parser) if parser else detected
    # The operator may name a parser of models that think from the first token for a model that does not think.
    if found is not None and found.implicit and not any(found.end in text for text in templates):
        found = replace(found, implicit=False)
    return with_markers(found, options.thinking_start_token, options.thinking_end_token)


def with_markers(found: ReasoningFormat | None, start: str | None, end: str | None) -> ReasoningFormat | None:
    """The format with other markers; a model without a format gets `think` with these markers."""
    if start is None and end is None:
        return found
    found = found or formats.reasoning_format("think")
    return replace(found, start=start or found.start, end=end or found.end)
