"""The model's tokenizer: text to tokens and back, its special tokens and its chat templates.

Special tokens that a client's text spells are encoded as text; a text that is too long is refused while it is read.
"""

import codecs
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final, get_type_hints

import tokenizers
from msgspec import Struct

from pippin.core.errors import ServerError
from pippin.core.parameters import OF_CHECKPOINTS, OfEveryAnswer, left_out
from pippin.core.published import chat_templates, fields_in, find_json, mistaken, name_of, object_in, table
from pippin.engines.language.kept import files_of, kept
from pippin.engines.language.text.fast_forms import SENTENCEPIECE, as_sentencepiece, open_known
from pippin.engines.language.text.stored_words import StoredWords, opened, stored, without_dropout
from pippin.engines.refusals import refused

log = logging.getLogger(__name__)

# A tokenizer of 50,000 words takes about 100 bytes of memory for each byte of text, and two seconds for each megabyte
# (measured with SmolLM2's on 30 MB of English: 63 s, 2.8 GB). So a text that can hardly fit is first tokenized in
# pieces, until these exceed the limit; the rest is then never read.
PIECE: Final = 64 << 10  # characters
# Characters for each token of an ordinary text, at most: a shorter text is tokenized at once.
LIKELY: Final = 6
AT_A_CUT: Final = 16  # tokens that a cut within a word may add
SHORTEST: Final = 4096  # characters
OF_A_WORD: Final = 128
"""Tokens at the end of a cut text that may differ from those of the whole text: BERT's tokenizers give one unknown
token for a word of more than 100 letters, and up to as many tokens as letters for a part of it."""


class TooLong(Exception):
    """A text has too many tokens: `least` of them, or more."""

    def __init__(self, least: int) -> None:
        super().__init__(f"the text has {least} tokens or more")
        self.least = least


def check_length(backend: tokenizers.Tokenizer, text: str, most: int | None) -> None:
    """Raises `TooLong` for a long text that has more than `most` tokens; `None` is no limit."""
    if most is None or len(text) <= max(PIECE, most * LIKELY):
        return
    count = 0
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        count += max(0, len(encode_text(backend, piece)) - AT_A_CUT)
        if count > most:
            raise TooLong(count)


def beginning(backend: tokenizers.Tokenizer, text: str, most: int) -> str:
    """The beginning of a long text with its first `most` tokens, and more; a text of fewer tokens is returned whole."""
    size = max(SHORTEST, most * LIKELY)
    while size < len(text):
        if len(encode_text(backend, text[:size])) > most + OF_A_WORD:
            return text[:size]
        size *= 2
    return text


BREAK = "\ufdee"
"""The noncharacter that shielding puts into a marker."""

ESCAPED = "\\ufdee"
"""The noncharacter as it is written in Python's notation, and in JSON of ASCII alone."""

NAME = "\ufdef"
"""A marker's name in the renamed copy of the tokenizer is its id between two of these noncharacters."""

_RESERVED = str.maketrans({BREAK: "\ufffd", NAME: "\ufffd"})


class Literals:
    """Shields markers in clients' text, and encodes rendered prompts. Several threads may use it at once.

    `<|im_end|>` in a message is encoded as text and never ends the message. Markers are special tokens, and added
    tokens that the chat template or an output format is written with. Before a template sees a client's text, a
    noncharacter (U+FDEE) is put into each marker in it, so that every whole marker of the rendered prompt is the
    template's own. A prompt with such noncharacters is encoded by a copy of the tokenizer in which markers have
    other names. Every other prompt is encoded by the tokenizer itself: ordinary text costs nothing and keeps its
    tokens.
    """

    def __init__(self, backend: tokenizers.Tokenizer, template_text: str) -> None:
        """Added tokens count as markers if they are special or occur in `template_text`: the chat templates and the
        markers of the output formats in use."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        markers = {id_: str(token.content) for id_, token in added.items() if len(token.content) > 1}
        special = {id_ for id_ in markers if added[id_].special}
        used = {id_ for id_ in markers if markers[id_] in template_text and markers[id_].strip()}
        self._names = {markers[id_]: f"{NAME}{id_}{NAME}" for id_ in special | used}
        self._any = pattern_of(self._names)
        self._special = pattern_of(markers[id_] for id_ in special)

    def shield(self, text: str, *, trusted: bool = False) -> str:
        """Put a noncharacter into each marker of `text`.

        The text of a trusted author (system, assistant) may hold markers that are no special tokens, such as `<think>`:
        models write them and clients send them back.
        """
        if NAME in text or BREAK in text or ESCAPED in text:
            text = text.translate(_RESERVED).replace(ESCAPED, ESCAPED[0] + BREAK + ESCAPED[1:])
        pattern = self._special if trusted else self._any
        return text if pattern is None else broken(text, pattern)

    def shield_value(self, value: Any) -> Any:
        """A JSON value of a trusted author with all its strings shielded, keys included."""
        match value:
            case str():
                return self.shield(value, trusted=True)
            case dict():
                return {self.shield_value(key): self.shield_value(held) for key, held in value.items()}
            case list() | tuple():
                return [self.shield_value(held) for held in value]
            case _:
                return value

    def last_marker(self, rendered: str) -> int:
        """Where the last whole marker of a rendered prompt begins; 0 without one. What comes before does not change
        the tokens from there on."""
        found = () if self._any is None else self._any.finditer(rendered)
        return max((each.start() for each in found), default=0)

    def encode(self, rendered: str, most: int | None = None) -> list[int]:
        """The tokens of a rendered prompt, in which whole markers are special tokens and shielded ones are text.

        Raises `TooLong` for a long prompt of more than `most` tokens.
        """
        check_length(self._backend, rendered, most)
        if BREAK not in rendered or self._any is None:
            return encode_text(self._backend, rendered.replace(BREAK, ""))
        named = self._any.sub(lambda found: self._names[found.group()], rendered)
        return encode_text(self._renamed, named.replace(BREAK, ""))

    @cached_property
    def _renamed(self) -> tokenizers.Tokenizer:
        return with_renamed_tokens(self._backend, self._names)


def plain(rendered: str) -> str:
    """A rendered prompt without the noncharacters that shielding put into it."""
    return rendered.replace(BREAK, "")


def broken(text: str, marks: re.Pattern[str]) -> str:
    """The text with a noncharacter in each of these marks."""
    while marks.search(text):
        text = marks.sub(lambda found: found[0][0] + BREAK + found[0][1:], text)
    return text


def pattern_of(markers: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of these markers, the longest first; None for none."""
    ordered = sorted(markers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def encode_text(backend: tokenizers.Tokenizer, text: str, *, around: bool = False) -> list[int]:
    """The tokens of a text. `around`: with those that the tokenizer puts around it."""
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=around)[0].ids
    return ids


def with_renamed_tokens(backend: tokenizers.Tokenizer, names: dict[str, str]) -> tokenizers.Tokenizer:
    """A copy of the tokenizer in which these tokens have other names, which text can't spell.

    Raises `ValueError` where a token would get another id.
    """
    state = json.loads(backend.to_str())
    state["post_processor"] = state["truncation"] = state["padding"] = None
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = state["model"]["vocab"]
    if isinstance(vocabulary, dict):
        state["model"]["vocab"] = {names.get(piece, piece): id_ for piece, id_ in vocabulary.items()}
    else:
        state["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    copy = tokenizers.Tokenizer.from_str(json.dumps(state))
    for marker, name in names.items():
        if copy.token_to_id(name) != backend.token_to_id(marker):
            raise ValueError(f"the tokenizer's marker {marker!r} has another id in the renamed copy")
    return copy


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

BESIDE: Final = "a"
"""A token that every decoder leaves as it is."""


class Pieces:
    """The bytes of each token of a vocabulary, spelled out when a token is first met. One serves all streams.

    A decoder of the tokenizers library spells each token by itself, but for the first and the last of a text. So the
    bytes of a token are what the decoder adds for it between two others; only tokens that are a part of a character
    are read here, as ByteLevel and ByteFallback read them. Special tokens are spelled as they are called.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.added: dict[int, tokenizers.AddedToken] = backend.get_added_tokens_decoder()
        self.special = frozenset(token for token, added in self.added.items() if added.special)
        decoder = backend.decoder
        # The library joins tokens with blanks where a tokenizer has no decoder.
        self._join: Callable[[list[str]], str] = " ".join if decoder is None else decoder.decode
        self._after = self._join([BESIDE, BESIDE]).removeprefix(BESIDE)
        if BESIDE not in self._after:
            raise ServerError(
                "load_failed", "A tokenizer with the decoder CTC, as of sound, is not read for text."
            )
        steps = "" if decoder is None else decoder.__getstate__().decode()
        self._byte_level = byte_values() if '"ByteLevel"' in steps else {}
        self._byte_fallback = '"ByteFallback"' in steps
        self.cuts_the_last = '"BPEDecoder"' in steps
        """Whether the last token of a text is spelled in another way than the same token before others."""
        self._known: dict[int, bytes] = {}

    def raw(self, token: int) -> bytes:
        """The bytes of a token amid a text, which may be a part of a character; empty for an id that the vocabulary
        lacks."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self.spell(token) or b""
        return known

    def spell(self, token: int, *, first: bool = False, last: bool = False) -> bytes | None:
        """The bytes of a token, where it stands first or last in a text or amid it; None for an id that the vocabulary
        lacks."""
        piece = self._backend.id_to_token(token) if token >= 0 else None
        if piece is None:
            return None
        if token in self.special:
            return piece.encode()
        text = self._join([*[BESIDE][first:], piece, *[BESIDE][last:]])
        if "\ufffd" in text:
            byte = _BYTE_TOKEN.fullmatch(piece) if self._byte_fallback else None
            if byte:
                return bytes((int(byte[1], 16),))
            if self._byte_level.keys() >= set(piece):
                return bytes(map(self._byte_level.__getitem__, piece))
        return text.removeprefix("" if first else BESIDE).removesuffix("" if last else self._after).encode()


def byte_values() -> dict[str, int]:
    """The byte for each character of a byte-level vocabulary (GPT-2's `bytes_to_unicode`, the other way round)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


class Detokenizer:
    """The text of one stream of tokens: what the tokenizer's decoder gives for all of them. The bytes of an incomplete
    character are held back.

    Of tokens for bytes that are no UTF-8, the library replaces each of the run; here, the characters before stay.
    """

    def __init__(self, pieces: Pieces, shown: frozenset[int], *, at_start: bool) -> None:
        self._pieces = pieces
        self._dropped = pieces.special - shown
        self._first = at_start
        self._held = b""  # what the last token shows if another follows
        self._begun = b""  # of a character that is incomplete

    def add(self, token: int) -> str:
        """The text that is complete with this token."""
        if token in self._dropped:
            return ""
        at_an_end = self._first or self._pieces.cuts_the_last
        known = self._begun + (self._at_an_end(token) if at_an_end else self._pieces.raw(token))
        text, decoded = codecs.utf_8_decode(known, "replace")
        self._begun = known[decoded:]
        return text

    def _at_an_end(self, token: int) -> bytes:
        followed = self._pieces.spell(token, first=self._first)
        if followed is None:
            return b""
        shown = self._pieces.spell(token, first=self._first, last=True) or b""
        held, self._held = self._held, followed.removeprefix(shown)
        self._first = False
        return held + shown

    def finish(self) -> str:
        """End the stream: replacement characters for bytes that never became a character."""
        return codecs.utf_8_decode(self._begun, "replace", True)[0]


class Tokenizer:
    """Several threads may use one tokenizer at once; each stream has a detokenizer of its own."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos: frozenset[int] = frozenset(),
        bos: int | None = None,
        vocab_size: int | None = None,
        special_names: dict[str, str] | None = None,
        chat_templates: dict[str, str] | None = None,
        asked: OfEveryAnswer | None = None,
    ) -> None:
        """Wrap a tokenizer of the tokenizers library.

        `vocab_size` is the number of tokens that the model has embeddings for, which may be above or below that of the
        tokenizer. `special_names` are the variables of chat templates for special tokens: `bos_token`, `eos_token` and
        so on. `asked` is what generation_config.json asks of every answer.
        """
        backend.no_padding()
        backend.no_truncation()
        without_dropout(backend)
        self.backend = backend
        self.eos = eos
        self.bos = bos
        self.size = max(backend.get_vocab_size(with_added_tokens=True), vocab_size or 0)
        self.rows = vocab_size or self.size
        self.special_names = special_names or {}
        self.chat_templates = chat_templates or {}
        self.asked = asked or OfEveryAnswer()
        self.literals = Literals(backend, "")
        self.pieces = Pieces(backend)
        self._shown = lru_cache(maxsize=16)(self._find_shown)

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False) -> "Tokenizer":
        """Read the tokenizer of a model folder. Raises `ServerError("load_failed")` for one that can't be read."""
        try:
            read = kept(
                Read,
                partial(_read_whole, folder, trust_remote_code=trust_remote_code),
                files_of(folder),
                str(trust_remote_code),
            )
            backend = opened(read.backend)
        except Exception as error:
            # tokenizers raises bare `Exception` for a file that it can't read.
            raise ServerError("load_failed", _unread(folder, error)) from error
        config = find_json(folder / "config.json") or {}
        generation = find_json(folder / "generation_config.json") or {}
        drawn = {each.name: each.in_checkpoints for each in OF_CHECKPOINTS}
        asked = get_type_hints(OfEveryAnswer, include_extras=True)
        others: dict[str, Any] = {"do_sample": bool, "eos_token_id": int | list[int]}
        said = fields_in(folder, "generation_config.json", **drawn, **asked, **others)
        if names := left_out(generation):
            log.warning("generation_config.json sets %s, which change no answer here", ", ".join(names))
        text_config = config.get("text_config") or {}
        backend.encode_special_tokens = read.splits_special
        ends = ids_in(read.eos, generation.get("eos_token_id"), config.get("eos_token_id"))
        # transformers writes what the text model's class has where its publisher said nothing: any word there is.
        inner = ids_in(text_config.get("eos_token_id"))
        return cls(
            backend,
            eos=ends | (inner & backend.get_added_tokens_decoder().keys() if ends else inner),
            bos=read.bos,
            vocab_size=text_config.get("vocab_size") or config.get("vocab_size"),
            special_names=read.special_names,
            chat_templates=read.chat_templates,
            asked=OfEveryAnswer(**{name: said[name] for name in asked}),
        )

    def encode(self, text: str, *, add_special_tokens: bool = False, most: int | None = None) -> list[int]:
        """The tokens of a text; special tokens that it spells are encoded as such.

        Raises `TooLong` for a long text of more than `most` tokens.
        """
        check_length(self.backend, text, most)
        return encode_text(self.backend, text, around=add_special_tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens, with special tokens spelled out."""
        text: str = self.backend.decode(list(tokens), skip_special_tokens=False)
        return text

    def check(self, tokens: Collection[int], field: str, *, embedded: bool = True) -> None:
        """Raises `ServerError` naming the field for ids that the model has no embedding for, or without `embedded` for
        those that neither the tokenizer nor the model has."""
        end = self.rows if embedded else self.size
        if not tokens or (min(tokens) >= 0 and max(tokens) < end):
            return
        position, token = next((i, each) for i, each in enumerate(tokens) if not 0 <= each < end)
        text = self.backend.id_to_token(token) if 0 <= token < self.size else None
        named = (
            f"the token {token}" if text is None else f"the token {token} ({text!r}, of the tokenizer alone)"
        )
        raise refused(field, f"holds {named} at position {position}; this model's go from 0 to {end - 1}.")

    def raw(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character."""
        return self.pieces.raw(token)

    def detokenizer(self, markers: Iterable[str] = (), *, at_start: bool = False) -> Detokenizer:
        """A detokenizer for a new stream, which drops special tokens other than those in `markers`.

        `at_start`: the stream is a text of its own, which loses the leading space that many decoders strip; text that
        goes on from a prompt keeps it.
        """
        return Detokenizer(self.pieces, self._shown(frozenset(markers)), at_start=at_start)

    def single(self, text: str) -> int | None:
        """The id of the added token that is spelled `text`, or None."""
        return self._added_ids.get(text)

    def with_markers(self, text: str) -> "Tokenizer":
        """The same tokenizer with `text` as the `template_text` of its `Literals`."""
        found = copy(self)
        found.literals = Literals(self.backend, text)
        return found

    def added_in(self, markers: Iterable[str]) -> frozenset[str]:
        """The texts of the added tokens that these markers are written with."""
        return frozenset(str(self.pieces.added[token].content) for token in self._shown(frozenset(markers)))

    @cached_property
    def line_ends(self) -> tuple[int, ...]:
        """The tokens that are a line feed and nothing else."""
        return tuple(token for token in range(self.size) if self.raw(token) == b"\n")

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        return {str(added.content): token for token, added in self.pieces.added.items()}

    def _find_shown(self, markers: frozenset[str]) -> frozenset[int]:
        """The added tokens that occur in markers. A marker may be several tokens with text between them."""
        return frozenset(
            token for text, token in self._added_ids.items() if any(text in marker for marker in markers)
        )


class Read(Struct, frozen=True):
    """A tokenizer as a folder's files have it, and as transformers reads them."""

    backend: StoredWords
    splits_special: bool  # special tokens that a text spells are cut as text
    eos: int | None
    bos: int | None
    special_names: dict[str, str]
    chat_templates: dict[str, str]


def _read_whole(folder: Path, *, trust_remote_code: bool) -> Read:
    """Raises what transformers raises."""
    found = open_known(folder) or _from_transformers(folder, trust_remote_code=trust_remote_code)
    backend = found.backend_tokenizer
    return Read(
        stored(_as_stored(folder, backend)),
        backend.encode_special_tokens,
        found.eos_token_id,
        found.bos_token_id,
        {name: text for name, text in found.special_tokens_map.items() if isinstance(text, str)},
        chat_templates(folder, found.chat_template),
    )


WAYS: Final = ("normalizer", "pre_tokenizer", "model", "decoder")
"""What a tokenizer.json says of how texts are cut and joined."""


def _as_stored(folder: Path, backend: tokenizers.Tokenizer) -> str:
    """A tokenizer with the ways of its folder's tokenizer.json, where those are BPE's. transformers 5 puts those of the
    class that tokenizer_config.json names in their place, which published tokenizers often are not; transformers 4
    kept them, but for `add_prefix_space` and where `fix_mistral_regex` has had it replace how words are cut. A
    SentencePiece model without that file is read as SentencePiece reads it."""
    stored, made = object_in(folder / "tokenizer.json"), backend.to_str()
    if not stored and (folder / SENTENCEPIECE).is_file():
        return as_sentencepiece(folder, made)
    if table(stored.get("model")).get("type") != "BPE":
        return made
    prefixed = object_in(folder / "tokenizer_config.json").get("add_prefix_space")
    cut = stored.get("pre_tokenizer")
    if isinstance(prefixed, bool):
        if '"ByteLevel"' not in json.dumps([cut, stored.get("decoder")]):
            return made
        if isinstance(cut, dict) and "add_prefix_space" in cut:
            cut["add_prefix_space"] = prefixed
    kept_ways = {way: stored.get(way) for way in WAYS}
    if getattr(backend, "fix_mistral_regex", False):
        del kept_ways["pre_tokenizer"]
    return json.dumps(json.loads(made) | kept_ways)


def _from_transformers(folder: Path, *, trust_remote_code: bool) -> Any:
    """The tokenizer as transformers reads it. Raises what that raises."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

    load, plain = (
        partial(each.from_pretrained, folder, trust_remote_code=trust_remote_code, local_files_only=True)
        for each in (AutoTokenizer, PreTrainedTokenizerFast)
    )
    # Its tokenizer in Python is the SentencePiece model and nothing else.
    if object_in(folder / "config.json").get("model_type") == "ernie4_5_moe_vl":
        return plain()
    try:
        return load()
    except ImportError:
        # Mistral's own class needs a package of theirs, and its folders have a tokenizer.json as well.
        if not (folder / "tokenizer.json").is_file():
            raise
        return plain()
    except (StrictDataclassError, AttributeError):
        # transformers checks the model's whole configuration. It refuses that of Step 3.5, which also lists the layers
        # of prediction heads; for an unknown architecture, it fails at rotary embeddings that are scaled by YaRN.
        return load(config=PretrainedConfig())


WORD = str | dict[str, str | bool]
SETTINGS: Final[dict[str, Any]] = {
    **dict.fromkeys("bos_token eos_token unk_token sep_token pad_token cls_token mask_token".split(), WORD),
    "added_tokens_decoder": dict[str, dict[str, str | bool]],
    "additional_special_tokens": list[WORD],
    "chat_template": str | dict[str, str] | list[dict[str, str]],
    "extra_special_tokens": dict[str, WORD] | list[WORD],
    "split_special_tokens": bool,
    "tokenizer_class": str,
}
"""Fields of the files beside tokenizer.json, which transformers takes to be of these types."""


def _unread(folder: Path, error: Exception) -> str:
    """What is told of a tokenizer that can't be read."""
    for path in (folder / "tokenizer.json", folder / "tokenizer.model", folder / "tokenizer_config.json"):
        if path.is_file() and (what := mistaken(path)) is not None:
            return f"{path.name} of {name_of(folder)!r} {what}."
    try:
        fields_in(folder, "tokenizer_config.json", **SETTINGS)
        fields_in(folder, "special_tokens_map.json", **SETTINGS)
        fields_in(folder, "added_tokens.json", **dict.fromkeys(object_in(folder / "added_tokens.json"), int))
    except ServerError as wrong:
        return wrong.report.message
    reason = next(filter(None, map(str.strip, str(error).splitlines())), "")[:300]
    # The tokenizers library raises this for its own file.
    file = "tokenizer.json" if type(error) is Exception else "The tokenizer"
    way = "Is the folder complete?"
    if not (folder / "tokenizer.json").is_file():
        way = "Copy tokenizer.json, tokenizer_config.json and the chat template of the original model there."
    if "custom code" in reason:
        way += " A tokenizer that is Python code needs --trust-remote-code."
    return f"{file} in {name_of(folder)!r} can't be read ({type(error).__name__}: {reason}). {way}"


def ids_in(*found: Any) -> frozenset[int]:
    """The ids in fields that hold an id, a list of ids or nothing."""
    flat = [number for entry in found for number in (entry if isinstance(entry, list) else [entry])]
    return frozenset(number for number in flat if type(number) is int)
