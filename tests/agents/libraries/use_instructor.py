"""Instructor: objects by tools and by JSON schema. Run in an environment of its own."""

import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Color(BaseModel):
    name: Literal["red"]


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none"), mode=mode)
    color = client.create(
        model="scripted", response_model=Color, messages=[{"role": "user", "content": "A color, please"}]
    )
    assert color.name == "red"
