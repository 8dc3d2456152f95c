"""Pictures in a conversation with a model that reads text only."""

import base64
import json
from typing import Any

from tests.api.sockets.realtime.client import client_of
from tests.engines.attachments.test_reading import png

SCRIPT: dict[str, Any] = {"capabilities": {"chat": True, "tools": True}}
PICTURE = f"data:image/png;base64,{base64.b64encode(png(64, 48)).decode()}"


def test_a_picture_is_refused_in_the_question_and_a_line_once_it_is_not_the_newest(address: str) -> None:
    with client_of(address) as talk:
        talk.sets(output_modalities=["text"])
        shown = [{"type": "input_image", "image_url": PICTURE}]
        talk.send("conversation.item.create", item={"type": "message", "role": "user", "content": shown})
        talk.until("conversation.item.done")
        assert "text only" in json.dumps(talk.respond()[-1])
        talk.says("hello")
        response = talk.respond()[-1]["response"]
        assert response["status"] == "completed"
        assert "1 x picture" in response["warnings"][0]
