"""LangChain: an answer, a stream, a tool loop, structured output, embeddings. Run in an environment of its own."""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

address = sys.argv[1]
chat = ChatOpenAI(model="scripted", base_url=f"{address}/v1", api_key="none")


@tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"rain in {city}"


class Color(BaseModel):
    name: Literal["red"]


assert chat.invoke("Hello").content == "Hello there."
assert "".join(str(chunk.content) for chunk in chat.stream("Hello")) == "Hello there."

question = HumanMessage("What is the weather?")
bound = chat.bind_tools([weather])
asked = bound.invoke([question])
[call] = asked.tool_calls
result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
assert bound.invoke([question, asked, result]).content == "It rains in Oslo."

color = chat.with_structured_output(Color).invoke("A color, please")
assert color == Color(name="red"), color

embeddings = OpenAIEmbeddings(
    model="scripted",
    base_url=f"{address}/v1",
    api_key="none",
    check_embedding_ctx_length=False,  # else texts are sent as tokens of OpenAI's vocabulary
)
one, other = embeddings.embed_documents(["a text", "another text"])
assert len(one) == len(other) == len(embeddings.embed_query("a text")) > 0
