"""The tokenizer: what it makes of texts, its special tokens, and the ids that the configurations name."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from unicodedata import normalize

from tokenizers import Tokenizer as Backend
from tokenizers.models import Unigram

from pippin.core.parameters import OF_LENGTHS, left_out
from pippin.core.published import table
from pippin.core.verification import Finding, Severity
from pippin.engines.encoding import read_backend
from pippin.engines.language.configuration import fields_of
from pippin.engines.language.text.tokenizer import Tokenizer, encode_text, ids_in
from pippin.engines.verify.findings import data, finding
from pippin.engines.verify.folder import Folder
from pippin.engines.verify.template import THINKS

MARK: Final = re.compile(rb"<.*>|\[.*\]")
"""How an end is spelled that a tokenizer does not list among its added tokens."""
LEAST: Final = -50.0  # a bias with which no token is drawn
PIECES: Final = 500  # that are tried
MOST: Final = 0.9
"""The share of pieces that texts are cut into. Of published vocabularies all are but a few in a hundred."""
UNMADE: Final = 0.02
UNUSED: Final = re.compile(r"[\[<].*[\]>]")
SPACE: Final = "▁"
BROKEN: Final = "\ufffd"
"""What a part of a letter is decoded to."""
TEKKEN: Final = r"\p{Lu}"
"""What Mistral's way to cut words has, and the one lacks that was published by mistake."""


@cache
def texts() -> tuple[str, ...]:
    """Texts of many scripts, of white space, signs and code."""
    return tuple(json.loads(data("texts.json")))


def check(folder: Folder, tokenizer: Tokenizer, kind: str, turn_end: str = "") -> Iterator[Finding]:
    """Compare the tokenizer with the folder. `turn_end` is what the chat template writes after the assistant's words.

    Encoders' tokenizers may lose letters; those of models that write must not.
    """
    yield from _size(folder, tokenizer)
    yield from _added(folder, tokenizer)
    yield from _starts(folder, tokenizer, kind)
    if kind == "language":
        if fields := left_out(folder.generation):
            yield finding("generation-unread", None if {*fields} - OF_LENGTHS else "note", fields=fields)
        yield from _ends(folder, tokenizer, turn_end)
        yield from _round_trips(tokenizer)
    else:
        yield from _unknown(tokenizer)
        yield from _around(tokenizer)
    yield from _pieces(tokenizer)
    yield from _publisher(folder, tokenizer)


def of_file(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer as models that write nothing read it."""
    backend = read_backend(folder)
    return Tokenizer(backend, eos=tokenizer.eos, bos=tokenizer.bos, special_names=tokenizer.special_names)


def compare(tokenizer: Tokenizer, other: Tokenizer) -> Iterator[Finding]:
    """Compare with the tokenizer of the model before it was quantised."""
    cut = [text[:40] for text in texts() if tokenizer.encode(text) != other.encode(text)]
    if cut:
        yield finding("other-writing", what="How texts are cut", fields=[f"{text!r}" for text in cut[:4]])
    if tokenizer.eos != other.eos:
        ends = f"{sorted(tokenizer.eos)} and {sorted(other.eos)}"
        yield finding("other-writing", what="What ends answers", fields=ends)


def _size(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    rows, ids = folder.rows, tokenizer.backend.get_vocab(with_added_tokens=True)
    beyond = sorted((id_, text) for text, id_ in ids.items() if rows is not None and id_ >= rows)
    if beyond:
        id_, name = beyond[0]
        yield finding("token-without-embedding", count=len(beyond), rows=rows, id=id_, name=name)


def _added(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    for said, token in table(folder.tokenizer.get("added_tokens_decoder")).items():
        name = table(token).get("content")
        held = None if name is None else tokenizer.backend.token_to_id(name)
        if name is not None and str(held) != said:
            yield finding(
                "added-token", name=name, said=said, held="lacks it" if held is None else f"has {held}"
            )
            break
    for name, token in tokenizer.special_names.items():
        if (count := len(tokenizer.encode(token))) != 1:
            yield finding("special-token", name=name, token=token, count=count)


def _starts(folder: Folder, tokenizer: Tokenizer, kind: str) -> Iterator[Finding]:
    """What begins texts, and what fills rows, behind whose id the positions of RoBERTa's kind begin."""
    pad = tokenizer.backend.token_to_id(tokenizer.special_names.get("pad_token", ""))
    said = ids_in(folder.field("pad_token_id"), folder.generation.get("pad_token_id")) - {pad, -1}
    if pad is not None and said:
        # Models that write read no such token.
        yield finding("pad-disagrees", "note" if kind == "language" else None, own=pad, said=sorted(said))
    if tokenizer.bos is None:
        return
    said = ids_in(folder.field("bos_token_id"), folder.generation.get("bos_token_id")) - {tokenizer.bos}
    if said:
        # Files keep the one of transformers' class, which nobody reads.
        usual = {fields_of(part).defaults.get("bos_token_id") for part in (folder.config, folder.text)}
        grave: Severity | None = None if said - usual else "note"
        yield finding("bos-disagrees", grave, own=tokenizer.bos, said=sorted(said))
    if tokenizer.encode("a", add_special_tokens=True)[:2] == [tokenizer.bos] * 2:
        yield finding("bos-twice", who="tokenizer")


def _ends(folder: Folder, tokenizer: Tokenizer, turn_end: str) -> Iterator[Finding]:
    generation = ids_in(folder.generation.get("eos_token_id"))
    others = ids_in(
        folder.config.get("eos_token_id"),
        tokenizer.backend.token_to_id(tokenizer.special_names.get("eos_token", "")),
    )
    others |= ids_in(folder.text.get("eos_token_id")) & tokenizer.eos
    ends = generation | others
    if ids_in(tokenizer.encode("a", add_special_tokens=True)[-1:]) & ends:
        yield finding("eos-appended")
    vocabulary = set(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    for id_ in sorted(ends):
        piece = b"" if id_ in tokenizer.pieces.added else tokenizer.raw(id_)
        is_word = bool(piece) and not MARK.fullmatch(piece.strip())
        if id_ not in vocabulary or is_word or THINKS.fullmatch(tokenizer.decode([id_])):
            yield finding("eos-is-text", id=id_, piece=tokenizer.raw(id_))
    never = tokenizer.asked.biases(tokenizer.size, ())
    if ends and all(never.get(id_, 0.0) <= LEAST for id_ in ends):
        yield finding("eos-never", ids=sorted(ends))
    written = tokenizer.encode(turn_end) if turn_end else []
    # Of several ends, the one that the template writes is met.
    met = others & {*written[:1]} or others
    if generation and met and not generation & met:
        yield finding("eos-disagree", own=sorted(generation), others=sorted(others))
    if written and written[0] not in ends:
        single = tokenizer.single(turn_end) is not None
        yield finding("turn-end", None if single else "fault", end=turn_end, ends=sorted(ends))


def _round_trips(tokenizer: Tokenizer) -> Iterator[Finding]:
    """What comes back of texts, as a whole and as a stream."""
    lost, differs = [], False
    of_bytes = "ByteLevel" in str(tokenizer.backend.decoder)
    for text in texts():
        ids = tokenizer.encode(text)
        stream = tokenizer.detokenizer()
        said = "".join(map(stream.add, ids)) + stream.finish()
        whole: str = tokenizer.backend.decode(ids, skip_special_tokens=True)
        # Many tokenizers add or drop spaces at the beginning.
        said, whole, text = (each.lstrip(" ") for each in (said, whole, text))
        if said != whole and not differs:
            differs = True
            yield finding("stream-differs", stream=said[:60], whole=whole[:60])
        if whole != text:
            same = normalize("NFKC", whole) == normalize("NFKC", text)
            # A vocabulary of bytes lacks no script.
            lacking = same if of_bytes else not text.isascii()
            lost.append((lacking, text[:60], whole[:60]))
    if lost:
        lacking, text, back = min(lost)
        yield finding(
            "round-trip", "note" if lacking else None, count=len(lost), all=len(texts()), text=text, back=back
        )


def _stored_so(folder: Folder, text: str, ids: list[int]) -> bool:
    """Whether tokenizer.json itself cuts a text so, where transformers 5 has put other ways in its place."""
    path = folder.path / "tokenizer.json"
    return path.is_file() and encode_text(Backend.from_file(str(path)), text) == ids


def _unknown(tokenizer: Tokenizer) -> Iterator[Finding]:
    """English words that an encoder does not know, as where a vocabulary of small letters is given capitals."""
    asked = [text for text in texts() if text.isascii() and not text.isspace()]
    unknown = tokenizer.backend.token_to_id(str(getattr(tokenizer.backend.model, "unk_token", None)))
    lost = [text[:40] for text in asked if unknown is not None and unknown in tokenizer.encode(text)]
    if lost:
        yield finding("words-unknown", count=len(lost), all=len(asked), text=lost[0])


def _around(tokenizer: Tokenizer) -> Iterator[Finding]:
    """The marks of a text's beginning and end that an encoder has and does not get."""
    ids = tokenizer.encode("a", add_special_tokens=True)
    marks = (tokenizer.special_names.get(name) for name in ("cls_token", "sep_token"))
    if lost := [mark for mark in marks if mark and tokenizer.backend.token_to_id(mark) not in ids]:
        yield finding("marks-left-out", marks=lost)


def _unmade(tokenizer: Tokenizer) -> list[str]:
    """Pieces that no merge of a BPE tokenizer makes, if there are more than the few that have other uses."""
    model = json.loads(tokenizer.backend.to_str())["model"]
    if model["type"] != "BPE" or model.get("continuing_subword_prefix"):
        return []
    made = {"".join(pair) for pair in model["merges"]}
    long = [piece for piece in model["vocab"] if len(piece) > 1 and not UNUSED.fullmatch(piece)]
    unmade = [
        piece for piece in long if piece not in made and model["vocab"][piece] not in tokenizer.pieces.added
    ]
    return unmade if len(unmade) > UNMADE * len(long) else []


def _pieces(tokenizer: Tokenizer) -> Iterator[Finding]:
    """Pieces of the vocabulary that no text is cut into: their text alone, after a space or on a new line."""
    backend, added = tokenizer.backend, tokenizer.pieces.added
    if unmade := _unmade(tokenizer):
        share = len(unmade) / tokenizer.backend.get_vocab_size()
        yield finding("pieces-unmet", share=share, piece=unmade[-1])
        return
    words = [
        (id_, piece)
        for piece, id_ in backend.get_vocab(with_added_tokens=False).items()
        # A piece of a word is met within words alone, where a tokenizer marks the beginnings of words.
        if id_ not in added and not (piece.startswith("##") or UNUSED.fullmatch(piece))
        if not isinstance(backend.model, Unigram) or piece.startswith(SPACE)
    ]
    tried: dict[str, bool] = {}  # and whether a text is cut into the piece
    for id_, piece in sorted(words)[:: max(1, len(words) // PIECES)]:
        text = tokenizer.decode([id_])
        if len(text) > 1 and text.strip() and BROKEN not in text:
            last = [tokenizer.encode(before + text)[-1:] for before in ("", " ", "\n")]
            tried[piece] = [id_] in last
    unmet = [piece for piece, met in tried.items() if not met]
    if len(unmet) > (1 - MOST) * len(tried):
        yield finding("pieces-unmet", share=len(unmet) / len(tried), piece=unmet[-1])


def _publisher(folder: Folder, tokenizer: Tokenizer) -> Iterator[Finding]:
    """The ids of transformers' tokenizer, as the publisher's own programs use it."""
    from transformers import AutoTokenizer

    try:
        other: Any = AutoTokenizer.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises anything for a folder that it does not know
        yield finding("publisher-unread", reason=str(error).splitlines()[0][:120])
        return
    cut = str(tokenizer.backend.pre_tokenizer)
    doubted = getattr(getattr(other, "backend_tokenizer", None), "fix_mistral_regex", None) is False
    if doubted and "Split" in cut and TEKKEN not in cut:
        yield finding("mistral-cuts")
    for text in texts():
        own, ids = tokenizer.encode(text), list(other(text, add_special_tokens=False)["input_ids"])
        if ids != own and not _stored_so(folder, text, own):
            yield finding("tokens-differ", text=text[:40], own=own[:8], other=ids[:8])
            return
