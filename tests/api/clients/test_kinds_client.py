"""The real `openai` client, validating strictly, at every endpoint that is no generation."""

import base64
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import openai
import pytest
from openai import BadRequestError, OpenAI

from pippin.api.kinds import transcription
from pippin.core.events import Segment, Transcribed
from pippin.core.tasks import Transcribe
from tests.api.live_server import MODEL, live_server
from tests.clients import openai_of

SOUND = ("greeting.wav", b"RIFF-not-really", "audio/wav")
PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG-not-really").decode()
PICTURE = ("cat.png", b"\x89PNG-not-really", "image/png")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("live")
    with live_server(
        folder, {"rules": []}, enable_metrics=True, max_upload_mb=1.0, max_speech_chars=500
    ) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


def post(address: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{address}{path}", json={"model": MODEL, **body}, timeout=20)


def frames(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and bodies of server-sent events."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


# Embeddings


def test_embeddings_of_texts_are_unit_vectors_in_order(client: OpenAI) -> None:
    reply = client.embeddings.create(model=MODEL, input=["red fish", "blue fish"], encoding_format="float")
    assert [item.index for item in reply.data] == [0, 1]
    assert all(math.isclose(sum(x * x for x in item.embedding), 1, abs_tol=1e-6) for item in reply.data)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == 4
    assert reply.model == MODEL


def test_base64_holds_the_same_floats(client: OpenAI, address: str) -> None:
    plain = client.embeddings.create(model=MODEL, input="red fish", encoding_format="float")
    with OpenAI(base_url=f"{address}/v1", api_key="none") as lenient:  # by itself it asks for base64
        default = lenient.embeddings.create(model=MODEL, input="red fish")
    assert default.data[0].embedding == plain.data[0].embedding
    raw = post(address, "/embeddings", input="red fish", encoding_format="base64").json()
    packed = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(packed) // 4}f", packed)) == plain.data[0].embedding


def test_dimensions_cut_and_normalise(client: OpenAI) -> None:
    reply = client.embeddings.create(
        model=MODEL, input="a b c d e f g", dimensions=4, encoding_format="float"
    )
    assert len(reply.data[0].embedding) == 4
    assert math.isclose(sum(x * x for x in reply.data[0].embedding), 1, abs_tol=1e-6)


def test_token_ids_and_lists_of_them_are_inputs(client: OpenAI, address: str) -> None:
    tokens = httpx.post(f"{address}/tokenize", json={"model": MODEL, "prompt": "red fish"}).json()["tokens"]
    one = client.embeddings.create(model=MODEL, input=tokens, encoding_format="float")
    two = client.embeddings.create(model=MODEL, input=[tokens, tokens], encoding_format="float")
    text = client.embeddings.create(model=MODEL, input="red fish", encoding_format="float")
    assert [item.embedding for item in two.data] == [text.data[0].embedding] * 2
    assert one.data[0].embedding == text.data[0].embedding


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 17}, "dimensions"),  # the scripted model has 16
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "image_url": "x"}, "image_url"),
        ({"input": {"text": 1}}, "input.text"),
        ({"input": [{}]}, "input[0]"),
        ({"input": [{"image": ""}]}, "input[0].image"),
        ({"input": [{"image": "data:image/png;base64,!"}]}, "input[0].image"),
        ({"input": ["a", {"image": "https://example.com/a.png"}]}, "input[1]"),
        ({"input": [{"image": PIXEL}] * 65}, "input"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}], "input": "a"}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}], "instruction": "b"}, "instruction"),
        ({"messages": [{"role": "user", "content": "a"}], "truncate": True}, "truncate"),
        (
            {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False},
            "add_generation_prompt",
        ),
    ],
)
def test_embedding_bodies_that_cannot_be_honoured_are_refused_by_name(
    address: str, body: dict[str, Any], param: str
) -> None:
    reply = post(address, "/v1/embeddings", **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


SEEN = {"type": "image_url", "image_url": {"url": PIXEL}}


@pytest.mark.parametrize(
    "body",
    [
        {"input": PIXEL},
        {"input": {"image": PIXEL}},
        {"input": [{"image": PIXEL.partition(",")[2]}]},
        {"input": [{"image_url": PIXEL}]},
        {"input": [SEEN]},
        {"input": [{"type": "image", "image": PIXEL}]},
        {"input": [{"url": PIXEL}]},
        {"input": [{"content": [SEEN]}]},
        {"messages": [{"role": "user", "content": [SEEN]}], "add_generation_prompt": True},
    ],
)
def test_a_picture_may_be_given_as_mlx_vlm_jina_and_vllm_have_it(address: str, body: dict[str, Any]) -> None:
    given, told = (
        post(address, "/v1/embeddings", **each).json() for each in (body, {"input": "<image>" * 3})
    )
    assert len(given["data"]) == 1
    assert given["data"][0]["embedding"] == pytest.approx(told["data"][0]["embedding"])


def test_a_texts_object_is_the_text(address: str) -> None:
    [one, other] = post(address, "/v1/embeddings", input=["a fish", {"text": "a fish"}]).json()["data"]
    assert one["embedding"] == other["embedding"]


# Rerank


def test_documents_and_queries_may_be_pictures(address: str) -> None:
    documents = ["a text", {"image": PIXEL}, {"text": "b", "image_url": {"url": PIXEL}}]
    reply = post(address, "/v1/rerank", query={"text": "a", "image": PIXEL}, documents=documents).json()
    assert sorted(each["index"] for each in reply["results"]) == [0, 1, 2]
    shown = {each["index"]: each["document"] for each in reply["results"]}
    assert shown == {0: {"text": "a text"}, 1: documents[1], 2: documents[2]}


def test_documents_come_back_best_first(address: str) -> None:
    documents = ["green apples", {"text": "red fish in the sea"}, "red cars"]
    reply = post(address, "/v1/rerank", query="red fish", documents=documents).json()
    assert [item["index"] for item in reply["results"]] == [1, 2, 0]
    assert [item["relevance_score"] for item in reply["results"]] == [1.0, 0.5, 0.0]
    assert reply["results"][0]["document"] == {"text": "red fish in the sea"}
    assert reply["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("client_type", [cohere.Client, cohere.ClientV2])
def test_coheres_client_reads_the_order(
    address: str, client_type: type[cohere.Client] | type[cohere.ClientV2]
) -> None:
    """It speaks Cohere's first and second version."""
    documents = ["green apples", "red fish in the sea", "red cars"]
    with (
        httpx.Client(timeout=20) as connection,
        client_type(api_key="x", base_url=address, httpx_client=connection) as client,
    ):
        reply = client.rerank(model=MODEL, query="red fish", documents=documents, top_n=2)
    assert [(item.index, item.relevance_score) for item in reply.results] == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_top_n_and_return_documents(address: str, path: str) -> None:
    body = {"query": "red", "documents": ["red", "blue"], "top_n": 1, "return_documents": False}
    reply = post(address, path, **body).json()
    assert reply["results"] == [{"index": 0, "relevance_score": 1.0}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": [{"image": "x"}]}, "documents[0].image"),
        ({"query": "a", "documents": [{}]}, "documents[0]"),
        ({"query": "a", "documents": ["a"], "max_chunks_per_doc": 3}, "max_chunks_per_doc"),
    ],
)
def test_rerank_bodies_that_cannot_be_honoured_are_refused_by_name(
    address: str, body: dict[str, Any], param: str
) -> None:
    reply = post(address, "/v1/rerank", **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


# Speech to text


def test_a_transcription_as_the_sdk_asks_for_it(client: OpenAI) -> None:
    reply = client.audio.transcriptions.create(model=MODEL, file=SOUND)
    assert reply.text == "This is greeting.wav. It has 15 bytes."
    assert reply.usage is not None
    assert reply.usage.type == "duration"


def test_verbose_json_has_segments_and_words(client: OpenAI) -> None:
    reply = client.audio.transcriptions.create(
        model=MODEL,
        file=SOUND,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        language="de",
        temperature=0.5,
    )
    assert (reply.language, reply.duration) == ("de", 2.0)
    assert reply.segments is not None
    assert reply.words is not None
    assert [(item.id, item.start, item.end, item.temperature) for item in reply.segments] == [
        (0, 0.0, 1.0, 0.5),
        (1, 1.0, 2.0, 0.5),
    ]
    assert reply.words[0].word == "This is greeting.wav."


def test_words_alone_leave_segments_out(client: OpenAI) -> None:
    reply = client.audio.transcriptions.create(
        model=MODEL, file=SOUND, response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert reply.segments is None
    assert reply.words


@pytest.mark.parametrize(
    ("name", "media", "text"),
    [
        ("text", "text/plain", "This is greeting.wav. It has 15 bytes.\n"),
        (
            "srt",
            "text/plain",
            "1\n00:00:00,000 --> 00:00:01,000\nThis is greeting.wav.\n\n"
            "2\n00:00:01,000 --> 00:00:02,000\nIt has 15 bytes.\n",
        ),
        (
            "vtt",
            "text/vtt",
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nThis is greeting.wav.\n\n"
            "00:00:01.000 --> 00:00:02.000\nIt has 15 bytes.\n",
        ),
    ],
)
def test_text_formats(address: str, client: OpenAI, name: Any, media: str, text: str) -> None:
    assert client.audio.transcriptions.create(model=MODEL, file=SOUND, response_format=name) == text
    form = {"model": MODEL, "response_format": name}
    reply = httpx.post(f"{address}/audio/transcriptions", data=form, files={"file": SOUND})
    assert reply.headers["content-type"].startswith(media)


def test_a_segment_without_a_text_is_no_subtitle() -> None:
    fields = transcription.TranscriptionRequest(response_format="srt")
    heard = [Segment(0, 0.0, 1.0, " Hello."), Segment(1, 1.0, 1.0, ""), Segment(2, 2.0, 3.0, " Bye.")]
    done = Transcribed("Hello. Bye.", "en", 3.0)
    expected = "1\n00:00:00,000 --> 00:00:01,000\nHello.\n\n2\n00:00:02,000 --> 00:00:03,000\nBye.\n"
    assert transcription.draw(fields, Transcribe(audio=b""), done, heard).decode() == expected


def test_a_streamed_transcription_adds_up_to_the_whole(client: OpenAI) -> None:
    events = list(client.audio.transcriptions.create(model=MODEL, file=SOUND, stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert len(deltas) == 2
    assert "".join(deltas) == done.text == "This is greeting.wav. It has 15 bytes."


def test_lines_of_json_end_with_the_whole(address: str) -> None:
    form = {"model": MODEL, "response_format": "ndjson"}
    reply = httpx.post(f"{address}/v1/audio/transcriptions", data=form, files={"file": SOUND})
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert [line["text"] for line in lines[:2]] == ["This is greeting.wav.", " It has 15 bytes."]
    assert lines[2]["text"] == "This is greeting.wav. It has 15 bytes."
    assert reply.headers["content-type"] == "application/x-ndjson"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # OpenAI's own model for it
def test_translations_say_so(client: OpenAI) -> None:
    assert client.audio.translations.create(model=MODEL, file=SOUND).text.startswith("This is")
    reply = client.audio.translations.create(model=MODEL, file=SOUND, response_format="verbose_json")
    assert reply.language == "en"


def test_fields_in_the_address_count_where_the_form_has_none(address: str) -> None:
    reply = httpx.post(
        f"{address}/v1/audio/transcriptions",
        params={"model": MODEL, "response_format": "text"},
        files={"file": SOUND},
    )
    assert reply.text == "This is greeting.wav. It has 15 bytes.\n"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"response_format": "xml"}, "response_format"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "3"}, "temperature"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        (
            {"timestamp_granularities[]": "hour", "response_format": "verbose_json"},
            "timestamp_granularities[0]",
        ),
        ({"include[]": "logprobs"}, "include"),
        ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy"),
        ({"top_p": "0.5"}, "top_p"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
    ],
)
def test_forms_that_cannot_be_honoured_are_refused_by_name(
    address: str, form: dict[str, str], param: str
) -> None:
    reply = httpx.post(
        f"{address}/v1/audio/transcriptions", data={"model": MODEL, **form}, files={"file": SOUND}
    )
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)


def test_a_form_without_a_usable_file_is_refused(address: str) -> None:
    path = f"{address}/v1/audio/transcriptions"
    none = httpx.post(path, data={"model": MODEL}, files={"other": SOUND})
    assert (none.status_code, none.json()["error"]["param"]) == (400, "file")
    empty = httpx.post(path, data={"model": MODEL}, files={"file": ("a.wav", b"")})
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "file")
    two = httpx.post(path, data={"model": MODEL}, files=[("file", SOUND), ("file", SOUND)])
    assert two.status_code == 400
    assert httpx.post(path, json={"model": MODEL}).status_code == 415


def test_uploads_are_held_to_their_limit(address: str) -> None:
    big = {"file": ("big.wav", b"x" * 1_100_000)}
    reply = httpx.post(f"{address}/v1/audio/transcriptions", data={"model": MODEL}, files=big)
    assert reply.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x\r\n",
        b"nonsense",
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhalf',
        b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\xfe\r\n--x--\r\n',
        b"--x\r\n" + b"A: b\r\n" * 4000 + b"\r\n\r\n--x--",
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\na\r\n' * 300 + b"--x--\r\n",
    ],
)
def test_damaged_forms_are_refused(address: str, body: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    reply = httpx.post(f"{address}/v1/audio/transcriptions", content=body, headers=headers)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"


# Text to speech


def test_speech_comes_as_bytes_in_the_format_asked_for(client: OpenAI) -> None:
    reply = client.audio.speech.create(model=MODEL, input="Hello there", voice="alba", response_format="wav")
    assert reply.content[:4] == b"RIFF"
    assert reply.response.headers["content-type"] == "audio/wav"
    pcm = client.audio.speech.create(
        model=MODEL, input="Hello", voice="default", response_format="pcm", speed=2
    )
    assert len(pcm.content) == 2 * int(16000 * 5 * 0.01 / 2)


def test_speech_can_be_read_while_it_comes(client: OpenAI) -> None:
    asked = client.audio.speech.with_streaming_response.create(
        model=MODEL, input="Hello there", voice="basil"
    )
    with asked as reply:
        assert sum(len(piece) for piece in reply.iter_bytes(100)) > 1000
        assert reply.headers["content-type"] == "audio/mpeg"


def test_speech_as_events(address: str) -> None:
    body = {"input": "Hello there", "voice": "alba", "response_format": "pcm"}
    whole = post(address, "/v1/audio/speech", **body).content
    events = frames(post(address, "/audio/speech", **body, stream_format="sse").text)
    assert {name for name, _ in events[:-1]} == {"speech.audio.delta"}
    assert len(events) > 2
    assert b"".join(base64.b64decode(data["audio"]) for _, data in events[:-1]) == whole
    assert events[-1][0] == "speech.audio.done"
    assert events[-1][1]["usage"]["input_tokens"] > 0


def test_voices_are_listed(address: str) -> None:
    reply = httpx.get(f"{address}/v1/audio/voices", params={"model": MODEL}).json()
    assert reply["voices"] == ["alba", "basil"]


def test_an_unknown_voice_has_a_status_of_its_own(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="alba, basil"):
        client.audio.speech.create(model=MODEL, input="Hello", voice="alloy")


def test_speech_asked_for_in_the_address(address: str) -> None:
    query = {"model": MODEL, "input": "Hello", "voice": "alba", "response_format": "pcm", "speed": "2"}
    reply = httpx.post(f"{address}/v1/audio/speech", params=query)
    assert len(reply.content) == 800
    del query["response_format"]
    reply = httpx.post(f"{address}/v1/audio/speech", params=query)
    assert reply.headers["content-type"] == "audio/wav", "as at vllm-mlx, whose way this is"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": " "}, "input"),
        ({"input": "x" * 501}, "input"),
        ({"input": "a", "speed": 9}, "speed"),
        ({"input": "a", "response_format": "midi"}, "response_format"),
        ({"input": "a", "pitch": 0}, "pitch"),
        ({"input": "a", "ref_audio": "/etc/passwd"}, "ref_audio"),
        ({"input": "a", "ref_audio": "data:audio/wav;base64,???"}, "ref_audio"),
    ],
)
def test_speech_bodies_that_cannot_be_honoured_are_refused_by_name(
    address: str, body: dict[str, Any], param: str
) -> None:
    reply = post(address, "/v1/audio/speech", **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


# Images


def test_pictures_come_as_base64(client: OpenAI) -> None:
    reply = client.images.generate(model=MODEL, prompt="a red fish", n=2, size="64x32")
    assert reply.data is not None
    pictures = [base64.b64decode(item.b64_json or "") for item in reply.data]
    assert all(struct.unpack(">II", picture[16:24]) == (64, 32) for picture in pictures)
    assert pictures[0] != pictures[1]
    assert (reply.size, reply.output_format) == ("64x32", "png")
    assert reply.usage is not None
    assert reply.usage.output_tokens == 2 * 4 * 2


def test_edits_take_one_picture_or_several_and_no_mask(client: OpenAI) -> None:
    one = client.images.edit(model=MODEL, image=PICTURE, prompt="bluer", size="1024x1024")
    several = client.images.edit(model=MODEL, image=[PICTURE, PICTURE], prompt="bluer", n=2)
    assert one.data is not None
    assert several.data is not None
    assert (len(one.data), len(several.data)) == (1, 2)
    with pytest.raises(BadRequestError) as refused:
        client.images.edit(model=MODEL, image=PICTURE, prompt="bluer", mask=PICTURE)
    assert refused.value.param == "mask"


def test_edits_as_json(address: str) -> None:
    uri = "data:image/png;base64," + base64.b64encode(PICTURE[1]).decode()
    assert post(address, "/v1/images/edits", prompt="bluer", image=uri).status_code == 200
    assert post(address, "/images/edits", prompt="x", images=[{"image_url": uri}]).status_code == 200
    path = post(address, "/v1/images/edits", prompt="bluer", image="/etc/passwd")
    assert (path.status_code, path.json()["error"]["param"]) == (400, "image[0]")
    stored = post(address, "/v1/images/edits", prompt="x", images=[{"file_id": "f"}])
    assert (stored.status_code, stored.json()["error"]["param"]) == (400, "images[0].file_id")
    nothing = post(address, "/v1/images/edits", prompt="x")
    assert (nothing.status_code, nothing.json()["error"]["param"]) == (400, "image")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 11}, "n"),
        ({"prompt": "a", "size": "0x0"}, "size"),
        ({"prompt": "a", "size": "63x64"}, "size"),
        ({"prompt": "a", "size": "99999x64"}, "size"),
        ({"prompt": "a", "size": "big"}, "size"),
        ({"prompt": "a", "width": 64}, "height"),
        ({"prompt": "a", "response_format": "path"}, "response_format"),
        ({"prompt": "a", "output_path": "/tmp/x.png"}, "output_path"),
        ({"prompt": "a", "background": "transparent"}, "background"),
        ({"prompt": "a", "stream": True}, "stream"),
        ({"prompt": "a", "partial_images": 2}, "partial_images"),
        ({"prompt": "a", "response_format": "url"}, "response_format"),
        ({"prompt": "a", "output_compression": 50}, "output_compression"),
        ({"prompt": "a", "style": "vivid"}, "style"),
        ({"prompt": "a", "steps": 10**9}, "steps"),
    ],
)
def test_image_bodies_that_cannot_be_honoured_are_refused_by_name(
    address: str, body: dict[str, Any], param: str
) -> None:
    reply = post(address, "/v1/images/generations", **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_every_kind_is_counted_by_the_one_observer(address: str) -> None:
    post(address, "/v1/embeddings", input="count me")
    metrics = httpx.get(f"{address}/metrics").text
    counted = [line for line in metrics.splitlines() if 'kind="embeddings"' in line or "embeddings" in line]
    assert any("stop" in line for line in counted), metrics
    assert not any("cancelled" in line for line in counted)
