"""Renders the prompt of a request with the model's chat template, tokenizes it, and fits it into the context window."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pippin.core.conversation import Inline, Message, Part, Text, Tool, ToolCall, ToolResult
from pippin.core.errors import ServerError
from pippin.core.models import Rewritten
from pippin.core.requests import RESERVED_VARIABLES, GenerationRequest
from pippin.core.tasks import media_parts
from pippin.engines.base import check_wanted
from pippin.engines.language.job import Branch
from pippin.engines.language.prefix_cache.cache import shared_length
from pippin.engines.language.prompt import infill
from pippin.engines.language.prompt.forms import Forms, Proof
from pippin.engines.language.prompt.messages import CONTINUED, QUESTION, Converter
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal, TemplateTooCostly
from pippin.engines.language.template.traits import probe
from pippin.engines.language.text.tokenizer import (
    BREAK,
    ESCAPED,
    Literals,
    Tokenizer,
    TooLong,
    check_length,
    plain,
)
from pippin.engines.language.vision.media import (
    KINDS,
    TEXT_ONLY,
    Modality,
    Parts,
    PromptMedia,
    TextOnly,
    WholePrompt,
)
from pippin.engines.recent import Recent
from pippin.engines.refusals import refused
from pippin.output.tool_format import History


class RenderedPrompt(Struct, frozen=True):
    """The prompt of a request as the model gets it."""

    tokens: tuple[int, ...]
    text: str = ""  # empty for token ids whose text nobody needs
    branches: tuple[Branch, ...] = ()  # for the decisions of the request
    raw: bool = False  # text or token ids, not a conversation
    continued: str = ""  # the assistant's words that the answer continues
    pins: tuple[int, ...] = ()  # counts of tokens after which the prefix cache keeps the prompt
    partings: tuple[int, ...] = ()  # counts of tokens after which other prompts are likely to go on otherwise
    spares: tuple[int, ...] = ()  # counts of tokens after which some may
    media: PromptMedia | WholePrompt | None = None
    warnings: tuple[str, ...] = ()


Other = tuple[GenerationRequest, bool]
"""Another conversation, and whether an answer follows."""


@dataclass(frozen=True)
class TemplateWriter:
    """A chat template and how this server gives it conversations."""

    template: ChatTemplate
    converter: Converter

    def render(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...], generation: bool, /, **variables: Any
    ) -> str:
        """The text that the template makes of a conversation. Raises `ServerError` if it refuses it."""
        variables["add_generation_prompt"] = generation
        if tools and self.converter.traits.tools:
            variables["tools"] = self.converter.offer(tools)
        elif self.converter.traits.no_tools:
            variables["tools"] = None
        converted = self.converter.convert(messages, tools)
        try:
            return self.template.render(converted, variables).replace(ESCAPED, BREAK)
        except TemplateRefusal as error:
            message = f"The model's chat template can't render these messages: {error}"
            if isinstance(error, TemplateTooCostly):
                message = f"The chat template gave up on these messages: {error}."
            raise ServerError("invalid_request", message, "messages") from error


SAMPLES: Final = {modality: kind(Inline(b"")) for kind, modality in KINDS.items()}


def _is_in_results(modality: Modality, template: ChatTemplate, converter: Converter) -> bool:
    """Whether a template writes a medium in a tool's result, in the way in which it writes one of the user's."""
    writer = TemplateWriter(template, replace(converter, in_results=frozenset([modality])))
    called = (Message("user", (Text("QXA"),)), Message("assistant", (ToolCall("call12345", "qxtool", "{}"),)))
    parts = (Text("QXR"), SAMPLES[modality], Text("QXT"))
    results = (Message("tool", (ToolResult("call12345", said, "qxtool"),)) for said in (parts, parts[::2]))
    with suppress(ServerError):
        seen, unseen = (writer.render((*called, result), (Tool("qxtool"),), False) for result in results)
        said = writer.render((Message("user", parts),), (), False)
        marker = said.partition("QXR")[2].partition("QXT")[0].strip()
        is_added = marker and seen.count(marker) == unseen.count(marker) + 1
        return bool(is_added) and "QXR" in seen and "QXT" in seen
    return False


class PromptRenderer:
    """The chat templates of a model and what they need. Several threads may use it at once.

    The tools of the requests that it is given are those on offer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sources: Mapping[str, str],
        history: History,
        defaults: dict[str, Any],
        media: TextOnly = TEXT_ONLY,
    ) -> None:
        """Compile and try the chat templates. Raises `jinja2.TemplateSyntaxError`.

        `sources` are the templates by name, `defaults` the template variables that the model's options set, and `media`
        says how media become part of a prompt.
        """
        self._tokenizer = tokenizer
        self.media = media
        self._defaults = defaults
        self._templates: dict[str, tuple[TemplateWriter, Forms]] = {}
        # To find them, the whole conversation is rendered twice: 12 to 25 ms for 9,000 tokens (measured).
        self._tool_ends: Recent[tuple[int, ...], KnownTools] = Recent(most=MOST_KNOWN_TOOLS)
        for name, source in sources.items():
            template = ChatTemplate(source, tokenizer.special_names)
            style = media.style(template)
            converter = Converter(probe(template, history), history, tokenizer.literals, style)
            # Skeletons of conversations have no media.
            writer = TemplateWriter(template, replace(converter, media=None))
            forms = Forms(partial(writer.render, **defaults))
            if converter.traits.tool_results:
                shown = (each for each in media.modalities if _is_in_results(each, template, converter))
                converter = replace(converter, in_results=frozenset(shown))
            self._templates[name] = (TemplateWriter(template, converter), forms)

    def sample(self, modality: Modality, count: int = 1) -> str:
        """A rendered user message with media and a word. Raises `ServerError`."""
        message = Message("user", (*[SAMPLES[modality]] * count, Text("Look")))
        return self._render(GenerationRequest(model="", messages=(message,)), generation=True)

    @property
    def chats(self) -> bool:
        """Whether there is a chat template, so that the model takes messages."""
        return bool(self._templates)

    @property
    def offers_tools(self) -> bool:
        """Whether one of the templates writes the tools on offer."""
        return any(writer.converter.traits.tools for writer, _ in self._templates.values())

    @property
    def turn_end(self) -> str:
        """The text that the default template writes after an assistant message."""
        found = self._templates.get("default")
        return found[0].converter.traits.turn_end if found else ""

    @property
    def rewrites(self) -> tuple[Rewritten, ...]:
        """What the templates change of earlier turns when a conversation goes on."""
        traits = (writer.converter.traits for writer, _ in self._templates.values())
        return tuple(dict.fromkeys(each for found in traits for each in found.rewrites))

    def prompt(self, request: GenerationRequest, most: int) -> RenderedPrompt:
        """The whole prompt, whether or not it fits the context window.

        Raises `ServerError` naming the field, and `TooLong` for a long prompt of more than `most` tokens.
        """
        match request.prompt:
            case None:
                return self._chat(request, most)
            case str(text) if request.suffix is not None:
                return RenderedPrompt(
                    tuple(infill.infill_prompt(self._tokenizer, text, request.suffix, most)), text, raw=True
                )
            case str(text):
                tokens = tuple(self._tokenizer.encode(text, add_special_tokens=True, most=most))
            case ids:
                self._tokenizer.check(ids, "prompt")
                tokens, text = ids, self._tokenizer.decode(ids) if request.echo else ""
        if not tokens:
            raise refused("prompt", "is empty; give at least one token.")
        return RenderedPrompt(tokens, text, raw=True)

    def decisions(self, request: GenerationRequest, most: int) -> RenderedPrompt:
        """What the prompts of all decisions of a conversation begin with, and how each of them goes on.

        The user asks each question after the conversation, or goes on in the last message with it, and the assistant
        answers with a label. Raises `ServerError`, and `TooLong` for a conversation of more than `most` tokens.
        """
        given = request.messages or ()
        begun = given[-1].parts if request.continue_final else ()
        asked = Message("user", (*begun, Text(QUESTION)))
        messages = (*given[: len(given) - bool(begun)], asked, Message("assistant", (Text(CONTINUED),)))
        asking = replace(request, messages=messages, tools=())
        render, parts = partial(self._render, asking, generation=False), self._media(asking, False)
        text, media = self.media.expanded(render, parts, most) if parts else (render(), [])
        converter = self._template_for(())[0].converter
        warnings = _check_whole(text, messages, converter.traits.switches)
        opening, _, rest = text.rpartition(QUESTION)
        brancher = Brancher(self._tokenizer.literals, opening, rest.rpartition(CONTINUED)[0])
        questions = [converter.said(each.question) for each in request.decisions]
        encode = partial(self._tokenizer.literals.encode, most=most)
        asked_first = brancher.whole(questions[0])
        tokens, placed = (
            self.media.placed(asked_first, media, parts, encode) if parts else (encode(asked_first), None)
        )
        before = brancher.before(list(tokens), questions[0])
        ending = self._tokenizer.single(self.turn_end)
        ending = min(self._tokenizer.eos, default=None) if ending is None else ending
        branches = []
        for question, decision in zip(questions, request.decisions, strict=True):
            check_wanted()
            branches.append(brancher.branch(question, decision.labels, ending))
        first = branches[0].tokens
        common = min(min(len(each.tokens) - 1, shared_length(first, each.tokens)) for each in branches)
        return RenderedPrompt(
            (*before, *first[:common]),
            branches=tuple(replace(each, tokens=each.tokens[common:]) for each in branches),
            media=placed,
            warnings=warnings,
        )

    def partings(
        self, request: GenerationRequest, whole: RenderedPrompt, others: Sequence[Other]
    ) -> tuple[int, ...]:
        """How many of a prompt's tokens each of these conversations begins with, in order. Where media follow it is an
        estimate."""
        if not others:
            return ()
        text, found = self._render(request, generation=True), set()
        for conversation, generation in others:
            # A conversation that ends there may break the template's rules.
            with suppress(ServerError):
                other = self._render(conversation, generation=generation)
                rest = self._tokenizer.literals.encode(text[shared_length(text, other) :])
                found.add(max(len(whole.tokens) - len(rest), 0))
        return tuple(sorted(found - {0}))

    def tool_ends(self, request: GenerationRequest, whole: RenderedPrompt) -> tuple[int, ...]:
        """How many of a prompt's tokens stand before a tool on offer, and before its name: another list of tools may go
        on there. Of many tools some are left out; none is found where the template writes them in different ways."""
        for known, beginning, places in self._tool_ends.values():
            if known == request.tools and whole.tokens[: len(beginning)] == beginning:
                return places
        places = self._find_tool_ends(request, whole)
        if places:
            beginning = whole.tokens[: places[-1]]
            self._tool_ends.put(tuple(beginning), (request.tools, beginning, places))
        return places

    def _find_tool_ends(self, request: GenerationRequest, whole: RenderedPrompt) -> tuple[int, ...]:
        text = self._render(request, generation=True)
        other = self._render(_with_another_tool(request), generation=True)
        stop = shared_length(text, other)
        opening, named, _ = other[stop:].partition(LATER.name)
        opening = opening.lstrip(SEPARATORS)
        first = opening.partition(DESCRIPTION)[0]
        # Of a description all is passed over; it has no other tool's beginning in it.
        passed = f"(?:(?!{re.escape(first)}).)*"
        written = re.escape(opening).replace(re.escape(DESCRIPTION), passed)
        starts = [each.start() for each in re.compile(written, re.DOTALL).finditer(text, 0, stop)]
        if not named or not first or len(starts) != len(request.tools):
            return ()
        before = {len(text[:start].rstrip(SEPARATORS)) for start in starts}
        places = sorted(before | {start + len(first) for start in starts})
        places = places[:: -(-len(places) // MOST_TOOL_ENDS)]
        # Media come behind the tools, so that tokens are counted from the beginning.
        lengths = list(accumulate(len(self._tokenizer.raw(token)) for token in whole.tokens))
        return tuple(bisect_right(lengths, len(plain(text[:place]).encode())) for place in places)

    def _chat(self, request: GenerationRequest, most: int) -> RenderedPrompt:
        messages = request.messages
        if not messages:
            raise refused("messages", "is empty; give at least one message.")
        # Checked first, because rendering takes long, too. User texts are in the prompt whatever the template does.
        for message in messages:
            for part in message.parts if message.role == "user" else ():
                if isinstance(part, Text):
                    check_length(self._tokenizer.backend, part.text, most)
        continued = _continued(request, messages)
        if continued is not None:
            messages = (*messages[:-1], _marked(messages[-1]))
        asking, generation = replace(request, messages=messages), continued is None
        render, parts = partial(self._render, asking, generation=generation), self._media(asking, generation)
        text, media = self.media.expanded(render, parts, most) if parts else (render(), [])
        writer, _ = self._template_for(request.tools)
        warnings = _check_whole(text, messages, writer.converter.traits.switches)
        if continued is not None:
            text = text[: text.rfind(CONTINUED)] if CONTINUED in text else text
        encode = partial(self._tokenizer.literals.encode, most=most)
        tokens, placed = self.media.placed(text, media, parts, encode) if parts else (encode(text), None)
        return RenderedPrompt(
            tuple(tokens), plain(text), continued=continued or "", media=placed, warnings=warnings
        )

    def _media(self, request: GenerationRequest, generation: bool) -> Parts:
        """The media of a conversation in the order in which its prompt has them: forms may move results of tools."""
        messages, forms = request.messages or (), self._template_for(request.tools)[1]
        fields = {id(part): field for field, part in media_parts(messages)}
        if fields:
            messages = forms.of(messages, tools=bool(request.tools), generation=generation)
        return [(fields.get(id(part), field), part) for field, part in media_parts(messages)]

    def _render(self, request: GenerationRequest, *, generation: bool) -> str:
        writer, forms = self._template_for(request.tools)
        messages = forms.of(request.messages or (), tools=bool(request.tools), generation=generation)
        return writer.render(messages, request.tools, generation, **self._variables(request))

    def _template_for(self, tools: tuple[Tool, ...]) -> tuple[TemplateWriter, Forms]:
        found = self._templates.get("tool_use") if tools else None
        found = found or self._templates.get("default")
        if found is None:
            raise ServerError(
                "unsupported",
                "This model has no chat template, so it takes no messages. Send a raw prompt to /v1/completions, or "
                "start the server with --chat-template-file.",
                "messages",
            )
        return found

    def _variables(self, request: GenerationRequest) -> dict[str, Any]:
        forbidden = sorted(
            request.template_kwargs.keys() & (RESERVED_VARIABLES | self._tokenizer.special_names.keys())
        )
        if forbidden:
            raise ServerError(
                "invalid_request",
                f"'chat_template_kwargs' can't set {', '.join(forbidden)}. Leave them out.",
                f"chat_template_kwargs.{forbidden[0]}",
            )
        asked: dict[str, Any] = self._tokenizer.literals.shield_value(request.template_kwargs)
        variables = {**self._defaults, **asked}
        if request.thinking.enabled is not None:
            variables |= {"enable_thinking": request.thinking.enabled, "thinking": request.thinking.enabled}
        if request.thinking.effort is not None:
            variables["reasoning_effort"] = self._tokenizer.literals.shield(request.thinking.effort)
        return variables


def _check_whole(
    rendered: str, messages: tuple[Message, ...], switches: re.Pattern[str] | None
) -> tuple[str, ...]:
    """Warnings of what the template took out of a conversation to act on it. Raises `ServerError` naming the turn of
    which it left out anything else."""
    proof = Proof(plain(rendered), switches)
    lost = proof.lost(messages)
    if lost is not None:
        raise ServerError(
            "invalid_request",
            f"The model's chat template leaves out a part of 'messages[{lost}]', which it takes for markup. Change "
            "that text, or choose another model.",
            f"messages[{lost}]",
        )
    return tuple(
        f"The model's chat template acts on a switch in 'messages[{index}]', such as '/no_think', and takes it out."
        for index in proof.switched
    )


def _continued(request: GenerationRequest, messages: tuple[Message, ...]) -> str | None:
    """The words of the assistant that the answer continues, or None if the request does not ask for that."""
    if not request.continue_final:
        return None
    last = messages[-1]
    if last.role != "assistant" or any(isinstance(part, ToolCall) for part in last.parts):
        raise ServerError(
            "invalid_request",
            "To continue the last message it must be one of the assistant, without tool calls.",
            "messages",
        )
    return "\n".join(part.text for part in last.parts if isinstance(part, Text))


def _marked(message: Message) -> Message:
    """The message with `CONTINUED` after its last words."""
    texts = [index for index, part in enumerate(message.parts) if isinstance(part, Text)]
    if not texts:
        return replace(message, parts=(*message.parts, Text(CONTINUED)))
    parts = list(message.parts)
    last = parts[texts[-1]]
    assert isinstance(last, Text)
    parts[texts[-1]] = replace(last, text=last.text + CONTINUED)
    return replace(message, parts=tuple(parts))


MOST_PINS = 8
"""The most messages of a request whose prefix is pinned: the last ones of those that ask for it."""


def fit_prompt(
    renderer: PromptRenderer, context_window: int, reserve: int, partings: bool, request: GenerationRequest
) -> RenderedPrompt:
    """Render the prompt, and leave at least `reserve` tokens of the context window to the answer; `partings`: find out
    where other prompts are likely to part from it.

    With `overflow: truncate` the oldest turns of a conversation are dropped for that. Otherwise one free token is
    enough. Raises `ServerError("context_length_exceeded")` for a prompt that is too long.
    """
    truncates = request.overflow == "truncate"
    try:
        whole = renderer.prompt(request, context_window)
    except TooLong as error:
        length = f"{error.least} tokens or more"
    else:
        if len(whole.tokens) + (reserve if truncates else min(reserve, 1)) <= context_window:
            return _with_places(renderer, request, whole, partings=partings)
        length = f"{len(whole.tokens)} tokens"
    if truncates and (shorter := _truncated(renderer, request, context_window - reserve)) is not None:
        return shorter
    raise too_long(length, context_window, request)


def _with_places(
    renderer: PromptRenderer, request: GenerationRequest, whole: RenderedPrompt, *, partings: bool
) -> RenderedPrompt:
    """The prompt with the places that the prefix cache is told of."""
    messages, find = request.messages or (), partial(renderer.partings, request, whole)
    # A conversation up to and including each message that asks to be kept in the prefix cache.
    pinned = [index for index, message in enumerate(messages) if message.pin][-MOST_PINS:]
    pins = find([(replace(request, messages=messages[: index + 1]), False) for index in pinned])
    if not partings:
        return replace(whole, pins=pins)
    likely, spares = _likely(request), find(_left_out(request))
    if len(likely) > 1 and request.tools:  # it only begins
        with suppress(ServerError):  # a tool more may break the template's rules
            spares += renderer.tool_ends(request, whole)
    if isinstance(whole.media, PromptMedia):
        newest = whole.media.placed[-MOST_PINS:]
        spares += tuple(max(min(each.positions, default=0) - MEDIUM_OPENING, 0) for each in newest)
    return replace(whole, pins=pins, partings=find(likely), spares=spares)


def too_long(length: str, context_window: int, request: GenerationRequest) -> ServerError:
    """The refusal of a prompt of this length, such as "9000 tokens", in the words that clients read."""
    field = "prompt" if request.messages is None else "messages"
    return ServerError(
        "context_length_exceeded",
        f"This model's maximum context length is {context_window} tokens. However, your {field} resulted in {length}. "
        f"Please reduce the length of the {field}.",
        field,
    )


WORDS: Final = (Text("\N{WHITE SQUARE}"),)
"""What somebody else says, or later."""
DESCRIPTION: Final = "\N{WHITE DIAMOND}"
LATER: Final = Tool("\N{WHITE SQUARE}", DESCRIPTION, {"type": "object", "properties": {}})
"""A tool that is offered later, behind the others."""
SEPARATORS: Final = " \t\n,<"
"""What templates write between tools, or begin what is behind the last of them with."""
MEDIUM_OPENING: Final = 2
"""Tokens with which templates begin a medium, at most: whoever leaves it out goes on before them."""
MOST_TOOL_ENDS: Final = 32
"""States of layers that cannot be cut take megabytes each."""
MOST_KNOWN_TOOLS: Final = 16
KnownTools = tuple[tuple[Tool, ...], tuple[int, ...], tuple[int, ...]]
"""Tools, how prompts with them begin, up to the last of them, and the places found there."""


def _likely(request: GenerationRequest) -> list[Other]:
    """Conversations that are likely to come: this one after the user's next turn; if it only begins, also others in
    which the user says something else at first or last, and this one with a tool more. Compacted, it begins as others
    do."""
    messages = request.messages or ()
    speakers = [message.role for message in messages]
    if "user" not in speakers or speakers[-1] == "assistant":
        return []
    others = [(*messages, Message("assistant", WORDS), Message("user", WORDS))]
    if "assistant" not in speakers:
        last = max(index for index, role in enumerate(speakers) if role == "user")
        asked = Message("user", (*messages[last].parts[:-1], *WORDS))
        others.append((*messages[: speakers.index("user")], Message("user", WORDS)))
        others.append((*messages[:last], asked, *messages[last + 1 :]))
    found = [(replace(request, messages=each), True) for each in others]
    if request.tools and "assistant" not in speakers:
        found.append((_with_another_tool(request), True))
    return found


def _with_another_tool(request: GenerationRequest) -> GenerationRequest:
    return replace(request, tools=(*request.tools, LATER))


def _left_out(request: GenerationRequest) -> list[Other]:
    """This conversation once the client leaves out what its tools said last, or a reminder behind what was said."""
    messages = request.messages or ()
    begin = 1 + max(
        (at for at, each in enumerate(messages) if each.role == "assistant"), default=len(messages)
    )

    def emptied(part: Part) -> Part:
        return replace(part, parts=WORDS) if isinstance(part, ToolResult) else part

    shorter = tuple(replace(each, parts=tuple(map(emptied, each.parts))) for each in messages[begin:])
    others = [] if shorter == messages[begin:] else [(*messages[:begin], *shorter)]
    match [message.role for message in messages[-2:]]:
        case ["user" | "tool", "user" | "system" | "developer"]:
            others.append(messages[:-1])
    return [(replace(request, messages=each), True) for each in others]


def _truncated(renderer: PromptRenderer, request: GenerationRequest, most: int) -> RenderedPrompt | None:
    """The prompt without the fewest oldest turns that make it fit, or None if even the last turn alone does not fit.

    System messages are kept.
    """
    messages = request.messages or ()
    prompts: dict[int, RenderedPrompt] = {}

    def fits(cut: int) -> bool:
        kept = (*(m for m in messages[:cut] if m.role in ("system", "developer")), *messages[cut:])
        with suppress(TooLong):
            prompt = renderer.prompt(replace(request, messages=kept), most)
            if len(prompt.tokens) <= most:
                prompts[cut] = prompt
        return cut in prompts

    turns = [
        index
        for index, message in enumerate(messages)
        if index
        and message.role == "user"
        and not any(isinstance(part, ToolResult) for part in message.parts)
    ]
    place = bisect_left(turns, True, key=fits)
    return prompts[turns[place]] if place < len(turns) else None


class Brancher:
    """Tokenizes the questions of decisions, and their labels, as they stand in whole prompts, without reading these
    again.

    A marker of the template is a token whatever stands beside it, so the tokens from the last one on are those of the
    whole prompt.
    """

    def __init__(self, literals: Literals, opening: str, answering: str) -> None:
        """`opening` and `answering` are what the template writes before a question, and between it and its answer."""
        self._literals = literals
        self._opening, self._answering = opening, answering
        self._cut = literals.last_marker(opening)
        # Tokens of what follows the last marker: many labels are alike.
        self._known: dict[str, list[int]] = {}

    def whole(self, question: str) -> str:
        return self._opening + question + self._answering

    def before(self, tokens: list[int], question: str) -> list[int]:
        """The tokens of a whole prompt to which those of branches are added. Raises `ServerError`."""
        own = self._literals.encode(self.whole(question)[self._cut :])
        if tokens[-len(own) :] != own:
            if not self._cut:
                raise ServerError(
                    "unsupported", "This model's media and decisions do not go together.", "model"
                )
            self._cut = 0
            return self.before(tokens, question)
        return tokens[: -len(own)]

    def branch(self, question: str, labels: Sequence[str], ending: int | None) -> Branch:
        """The question with all that follows the tokens of `before`, and its labels. Where one begins with another,
        each of them ends with the token `ending`, so that it is the whole answer.

        Raises `ServerError` for labels that have the same tokens, or none.
        """
        text = self.whole(question)[self._cut :]
        tokens, start = self._literals.encode(text), self._literals.last_marker(text)
        open_turn = self._encode(text[start:])
        if tokens[-len(open_turn) :] != open_turn:
            start, open_turn = 0, tokens
        answers = [
            self._encode(text[start:] + self._literals.shield(label, trusted=True)) for label in labels
        ]
        common = min(shared_length(open_turn, each) for each in answers)
        found = [tuple(each[common:]) for each in answers]
        ordered = sorted(found)
        pairs = list(pairwise(ordered))
        if not all(found) or any(one == other for one, other in pairs):
            raise ServerError(
                "invalid_request", "Two labels of a question are the same to this model.", "questions"
            )
        if ending is not None and any(other[: len(one)] == one for one, other in pairs):
            found = [(*each, ending) for each in found]
        return Branch(tuple(tokens[: len(tokens) - len(open_turn) + common]), tuple(found))

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._literals.encode(text)
        return self._known[text]
