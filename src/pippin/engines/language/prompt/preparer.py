"""The preparer of language models: it makes a job of a request, beside the step loop."""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Tool
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Counted, Detokenized, Event, Rendered, Tokenized
from pippin.core.models import Capabilities, ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Detokenize, Generate, RenderTemplate, Task, Tokenize
from pippin.engines.language.constraints.grammar import CompiledGrammar, GrammarCompiler
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prompt import infill, limits
from pippin.engines.language.prompt.fitting import fit_prompt, too_long
from pippin.engines.language.prompt.reasoning import ReasoningPlan, plan_reasoning, with_markers
from pippin.engines.language.prompt.rendering import PromptRenderer, RenderedPrompt
from pippin.engines.language.text.length import TooLong
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.checkpoint import load_processor
from pippin.engines.language.vision.media import Medium
from pippin.output import formats
from pippin.output.tool_format import History, ToolFormat

if TYPE_CHECKING:
    from pippin.engines.language.vision.processing import MediaProcessor

log = logging.getLogger(__name__)

UNKNOWN_CONTEXT_WINDOW = 1 << 20
"""The context window, in tokens, of a model whose configuration names none."""

ANSWER_DIVISOR = 4
"""With `overflow: truncate`, at most the context window divided by this is kept free for the answer."""

DEFAULT_TOOL_FORMAT = "json_tools"
"""The tool-call format of models whose template does not write tools."""

MOST_DETOKENIZED = 1 << 20
MOST_COUNTED = 1_000_000  # tokens of a text that is only counted or tokenized


class LanguagePreparer:
    """The preparer of one language model. Several threads may use it at once."""

    def __init__(self, spec: WorkerSpec, tokenizer: Tokenizer, media: "MediaProcessor | None" = None) -> None:
        """Raises `ServerError("load_failed")` for a broken chat template.

        `tokenizer` has the chat templates to use, and `media` is the processor of a model that takes media.
        """
        self.options = convert(spec.options, ModelOptions)
        sources = tokenizer.chat_templates
        source = sources.get("default", "")
        detected = formats.detect(source, spec.info.architecture)
        options = self.options
        self._tools = (
            formats.tool_format(options.tool_call_parser) if options.tool_call_parser else detected.tool
        )
        named = (
            formats.reasoning_format(options.reasoning_parser)
            if options.reasoning_parser
            else detected.reasoning
        )
        self._reasoning = with_markers(named, options.thinking_start_token, options.thinking_end_token)
        markers = [
            *(self._tools.markers if self._tools else ()),
            *(self._reasoning.markers if self._reasoning else ()),
        ]
        self.tokenizer = tokenizer.with_markers("\0".join([*sources.values(), *markers]))
        self._media = media
        if media is not None:
            media.use(self.tokenizer)
        self._renderer = self._open_renderer()
        if self._tools is not None and not options.tool_call_parser and not self._renderer.offers_tools:
            self._require_writable(self._tools)
        ending = self.tokenizer.single(self._renderer.turn_end)
        # A chat model whose configuration does not name the end of a turn would go on with the next turn.
        if ending is not None:
            self.tokenizer.eos |= {ending}
        self._grammars = GrammarCompiler(self.tokenizer)
        self._infill_ends = infill.end_tokens(self.tokenizer)
        longest = spec.info.context_window or UNKNOWN_CONTEXT_WINDOW
        self.context_window = min(longest, options.context_length or longest)
        self.info: ModelInfo = self._described(spec.info)

    def prepare(self, id: str, task: Task) -> LanguageJob | tuple[Event, ...]:
        try:
            return self._prepared(id, task)
        except TooLong as error:
            message = f"The text has {error.least} tokens or more; send at most {MOST_COUNTED} at a time."
            raise ServerError("too_large", message) from None

    def _prepared(self, id: str, task: Task) -> LanguageJob | tuple[Event, ...]:
        match task:
            case Generate(request):
                return self._job(id, request)
            case CountTokens(request):
                return (Counted(len(self._counted(request).tokens)),)
            case RenderTemplate(request):
                prompt = self._counted(request)
                return (Rendered(prompt.text, prompt.tokens),)
            case Tokenize(text, add_special_tokens, with_pieces):
                tokens = self.tokenizer.encode(text, add_special_tokens=add_special_tokens, most=MOST_COUNTED)
                pieces = tuple(map(self.tokenizer.raw, tokens)) if with_pieces else ()
                return (Tokenized(tuple(tokens), pieces),)
            case Detokenize(tokens):
                if len(tokens) > MOST_DETOKENIZED:
                    raise ServerError(
                        "invalid_request", f"'tokens' may hold {MOST_DETOKENIZED} at most.", "tokens"
                    )
                limits.check_tokens(tokens, self.tokenizer.size, "tokens")
                return (Detokenized(self.tokenizer.decode(tokens)),)
            case _:
                raise ServerError(
                    "unsupported",
                    f"The model {self.info.id!r} generates text; it can't do this. Name a model of the right kind.",
                    "model",
                )

    def try_media(self, is_faithful: Callable[[Medium], bool]) -> None:
        """Refuse from now on the modalities that the loaded model gets wrong, as `is_faithful` finds for a sample."""
        if self._media is None:
            return
        for modality, sample in self._media.samples.items():
            if modality in self._media.placeholders and not is_faithful(sample):
                log.warning(
                    "%s is served without %s: this family's are not supported", self.info.id, modality
                )
                self._media.refused.add(modality)
        self.info = self._described(self.info)

    def _counted(self, request: GenerationRequest) -> RenderedPrompt:
        return self._renderer.prompt(request, self._offered(request), most=MOST_COUNTED)

    def _job(self, id: str, request: GenerationRequest) -> LanguageJob:
        limits.check(request, self.tokenizer)
        offered = self._offered(request)
        asked = request.max_tokens
        reserve = min(1 if asked is None else asked, max(self.context_window // ANSWER_DIVISOR, 1))
        prompt = fit_prompt(self._renderer, request, offered, self.context_window, reserve)
        free = self.context_window - len(prompt.tokens)
        if free < 1 and asked != 0:
            raise too_long(f"{len(prompt.tokens)} tokens", self.context_window, request)
        tool_format = self._tool_format(request) if not prompt.raw else None
        reasoning = plan_reasoning(self._reasoning, prompt, request, self.tokenizer)
        ends = self.tokenizer.eos | (self._infill_ends if request.suffix is not None else frozenset())
        stops = request.stop + (tool_format.stops if tool_format and offered else ())
        return LanguageJob(
            id=id,
            request=request,
            accepted=Accepted(len(prompt.tokens), prompt.dropped),
            prompt=prompt.tokens,
            prompt_text=prompt.text if request.echo else "",
            raw_prompt=prompt.raw,
            max_tokens=max(min(free, free if asked is None else asked), 0),
            eos=frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else ends),
            pins=prompt.pins,
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
            key=_cache_key(request),
            media=prompt.media,
        )

    def _offered(self, request: GenerationRequest) -> tuple[Tool, ...]:
        """The tools of a request that its `tool_choice` leaves on offer. Raises `ServerError` naming `tool_choice`."""
        choice = request.tool_choice
        known = {tool.name for tool in request.tools}
        unknown = [name for name in choice.names if name not in known]
        if unknown:
            raise ServerError(
                "invalid_request",
                f"'tool_choice' names {unknown[0]!r}, which is not among 'tools'.",
                "tool_choice",
            )
        match choice.mode:
            case "none":
                return ()
            case "required" if not request.tools:
                raise ServerError(
                    "invalid_request", "'tool_choice' asks for a call, but 'tools' is empty.", "tool_choice"
                )
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
        reasoning: ReasoningPlan,
    ) -> CompiledGrammar | None:
        """The grammar that the output format, `tool_choice` and strict tools ask for, or None if they ask for none."""
        wanted, calls = request.output_format, None
        required = request.tool_choice.mode == "required"
        if tool_format is not None and offered:
            if required:
                wanted = None
            if required or wanted is not None or any(tool.strict for tool in offered):
                calls = tool_format.grammar(
                    offered,
                    required=required or wanted is not None,
                    parallel=request.parallel_tool_calls,
                    special=self._grammars.special_id,
                )
        if wanted is None and calls is None:
            return None
        param = "response_format" if wanted is not None else "tools"
        thinks = reasoning.opened or reasoning.may_open
        return self._grammars.compile(wanted, calls, reasoning=reasoning.format, thinks=thinks, param=param)

    def _open_renderer(self) -> PromptRenderer:
        defaults = dict(self.options.chat_template_kwargs)
        if self.options.enable_thinking is not None:
            defaults |= dict.fromkeys(("enable_thinking", "thinking"), self.options.enable_thinking)
        history = self._tools.history if self._tools else History()
        try:
            return PromptRenderer(
                self.tokenizer, self.tokenizer.chat_templates, history, defaults, self._media
            )
        except jinja2.TemplateSyntaxError as error:
            raise ServerError(
                "load_failed",
                f"The chat template is broken in line {error.lineno}: {error.message}. Give another one with "
                "--chat-template-file.",
            ) from error

    def _require_writable(self, found: ToolFormat) -> None:
        """Take the default tool-call format in place of one whose calls can't be shown to the model.

        Where the template does not write tools, a system message does, and shows a call in the format.
        """
        if found.history.write is None:
            self._tools = formats.tool_format(DEFAULT_TOOL_FORMAT)
            self._renderer = self._open_renderer()

    def _described(self, info: ModelInfo) -> ModelInfo:
        """The model's info with what its tokenizer, template and processor tell of it."""
        chat = bool(self.tokenizer.chat_templates)
        modalities = self._media.modalities if self._media is not None and chat else frozenset()
        capabilities = msgspec.structs.replace(
            info.capabilities or Capabilities(),
            chat=chat,
            tools=chat,
            reasoning=self._reasoning is not None,
            infill=infill.infill_format(self.tokenizer) is not None,
            images="image" in modalities,
            video="video" in modalities,
            audio="audio" in modalities,
        )
        return msgspec.structs.replace(
            info,
            capabilities=capabilities,
            context_window=None if self.context_window == UNKNOWN_CONTEXT_WINDOW else self.context_window,
            tool_format=self._tools.name if self._tools else None,
            reasoning_format=self._reasoning.name if self._reasoning else None,
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
    return LanguagePreparer(spec, tokenizer, load_processor(spec.info, options))


def _cache_key(request: GenerationRequest) -> bytes:
    """The key under which requests share prefixes: those of the same adapter and cache salt."""
    parts = f"{request.adapter or ''}\0{request.cache_salt or ''}"
    return hashlib.blake2b(parts.encode(), digest_size=16).digest()
