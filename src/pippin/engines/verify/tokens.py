"""The tokenizer: what it makes of texts, its special tokens, and the ids that the configurations name."""

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from pippin.core.verification import Finding
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify.files import fault, note, warning
from pippin.engines.verify.folder import Folder, ids_of

TOKENIZER = "fetch tokenizer.json and tokenizer_config.json of the publisher again"
GENERATION = "edit eos_token_id in generation_config.json"


@cache
def texts() -> tuple[str, ...]:
    """Texts of many scripts, of white space, signs and code."""
    lines = resources.files(__package__).joinpath("data", "texts.txt").read_text("utf-8").splitlines()
    return tuple(
        line.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\r", "\r").replace(r"\u00a0", "\u00a0")
        .replace(r"\u2003", "\u2003")
        for line in lines
    )  # fmt: skip


def check(folder: Folder, tokenizer: Tokenizer, kind: str, turn_end: str = "") -> Iterator[Finding]:
    """Compare the tokenizer with the folder. `turn_end` is what the chat template writes after the assistant's words.

    Encoders' tokenizers may lose letters; those of models that write must not.
    """
    yield from _size(folder, tokenizer)
    yield from _added(folder, tokenizer)
    yield from _starts(folder, tokenizer)
    if kind == "language":
        yield from _ends(folder, tokenizer, turn_end)
        yield from _round_trips(tokenizer)
        yield from _streams(tokenizer)
    yield from _publisher(folder, tokenizer)


def _size(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    rows = folder.rows
    ids = tokenizer.backend.get_vocab(with_added_tokens=True)
    beyond = sorted((id_, text) for text, id_ in ids.items() if rows is not None and id_ >= rows)
    if beyond:
        yield fault(
            "token-without-embedding",
            f"{len(beyond)} tokens have no embedding (there are {rows} rows), the first is {beyond[0][1]!r} "
            f"({beyond[0][0]}).",
            "A request whose text has one of them is refused, or is read past the array.",
            TOKENIZER,
        )


def _added(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    listed = folder.tokenizer.get("added_tokens_decoder")
    for number, token in (listed if isinstance(listed, dict) else {}).items():
        text = token.get("content") if isinstance(token, dict) else None
        found = None if text is None else tokenizer.backend.token_to_id(text)
        if text is not None and str(found) != number:
            yield fault(
                "added-token",
                f"tokenizer_config.json has {text!r} as token {number}, and tokenizer.json "
                f"{'lacks it' if found is None else f'has it as {found}'}.",
                "Turns, tools or thoughts are marked with tokens that the model does not know.",
                TOKENIZER,
            )
            break
    for name, text in tokenizer.special_names.items():
        if len(tokenizer.encode(text)) != 1:
            yield fault(
                "special-token",
                f"{name}, {text!r}, is {len(tokenizer.encode(text))} tokens.",
                "The model never sees the mark that it was trained with.",
                TOKENIZER,
            )


def _starts(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    said = ids_of(folder.field("bos_token_id"), folder.generation.get("bos_token_id"))
    if tokenizer.bos is not None and said - {tokenizer.bos}:
        yield fault(
            "bos-disagrees",
            f"The tokenizer begins texts with the token {tokenizer.bos}, and config.json says {sorted(said)}.",
            "Prompts begin with a mark that the model does not know, or the vocabulary is shifted.",
            TOKENIZER,
        )
    begun = tokenizer.encode("a", add_special_tokens=True)
    if tokenizer.bos is not None and begun[:2] == [tokenizer.bos] * 2:
        yield fault(
            "bos-twice",
            "The tokenizer writes the token that begins a text twice.",
            "Answers become worse without an error.",
            TOKENIZER,
        )


def _ends(folder: Folder, tokenizer: Tokenizer, turn_end: str) -> Iterator[Finding]:
    generation = ids_of(folder.generation.get("eos_token_id"))
    config = ids_of(folder.config.get("eos_token_id"), folder.text.get("eos_token_id"))
    named = ids_of(tokenizer.backend.token_to_id(tokenizer.special_names.get("eos_token", "")))
    vocabulary = set(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    for id_ in sorted(generation | config):
        added = tokenizer.pieces.added.get(id_)
        if id_ not in vocabulary or (added is None and tokenizer.raw(id_).strip().isalnum()):
            yield fault(
                "eos-is-text",
                f"The token {id_} is to end answers, and it is {tokenizer.raw(id_)!r}.",
                "Answers end in the middle, or never.",
                GENERATION,
            )
    if generation and (config | named) and not generation & (config | named):
        yield fault(
            "eos-disagree",
            f"generation_config.json ends answers with {sorted(generation)}; config.json and the tokenizer with "
            f"{sorted(config | named)}.",
            "Programs that read the first run on past the end; Pippin stops at all of them.",
            GENERATION,
        )
    ends = generation | config | named
    written = tokenizer.encode(turn_end) if turn_end else []
    if written and written[0] not in ends:
        single = tokenizer.single(turn_end) is not None
        make = warning if single else fault
        yield make(
            "turn-end",
            f"The chat template ends turns with {turn_end!r}, which is {'not' if single else 'no token and not'} among "
            f"the ends of answers ({sorted(ends)}).",
            "Other servers write the user's next turn too; Pippin stops there by the template."
            if single
            else "Answers do not end there.",
            GENERATION,
        )


def _round_trips(tokenizer: Tokenizer) -> Iterator[Finding]:
    lost = [text for text in texts() if _of(tokenizer.decode(tokenizer.encode(text))) != _of(text)]
    plain = [text for text in lost if text.isascii()]
    if plain:
        back = tokenizer.decode(tokenizer.encode(plain[0]))
        yield fault(
            "round-trip",
            f"{len(lost)} of {len(texts())} texts come back changed: {plain[0][:60]!r} as {back[:60]!r}.",
            "The model reads or writes other letters or spaces; code breaks first.",
            TOKENIZER,
        )
    elif lost:
        yield note(
            "round-trip",
            f"{len(lost)} of {len(texts())} texts come back changed, such as {lost[0][:40]!r}.",
            "Some scripts or signs are not in the vocabulary.",
        )


def _of(text: str) -> str:
    """A text without the spaces at its beginning, which many tokenizers add or drop."""
    return text.removeprefix(" ").lstrip(" ")


def _streams(tokenizer: Tokenizer) -> Iterator[Finding]:
    for text in texts():
        ids = tokenizer.encode(text)
        stream = tokenizer.detokenizer()
        said = "".join(map(stream.add, ids)) + stream.finish()
        whole: str = tokenizer.backend.decode(ids, skip_special_tokens=True)
        if _of(said) != _of(whole):
            yield fault(
                "stream-differs",
                f"A stream says {said[:60]!r} where the tokenizer says {whole[:60]!r}.",
                "Answers have other letters than the model wrote.",
                "report it with this line, and the model's name",
            )
            return


def _publisher(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    """The ids of transformers' tokenizer, as the publisher's own programs use it."""
    from transformers import AutoTokenizer

    try:
        other: Any = AutoTokenizer.from_pretrained(folder.path, local_files_only=True)
    except Exception as error:  # transformers raises anything for a folder that it does not know
        yield note("publisher", f"transformers can't read the tokenizer: {str(error).splitlines()[0][:120]}")
        return
    for text in texts():
        ids = list(other(text, add_special_tokens=False)["input_ids"])
        if ids != tokenizer.encode(text):
            yield fault(
                "tokens-differ",
                f"{text[:40]!r} is {tokenizer.encode(text)[:8]} here, and {ids[:8]} in transformers.",
                "The model reads other tokens than it was trained on.",
                TOKENIZER,
            )
            return
