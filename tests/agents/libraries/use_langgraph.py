"""LangGraph: an agent that calls a tool, whole and streamed."""

import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model="scripted", base_url=f"{sys.argv[1]}/v1", api_key="none", temperature=0, max_tokens=200
)


def weather(city: str) -> str:
    """Tells the weather."""
    return f"rain in {city}"


agent = create_agent(model, [weather])
asked = {"messages": [{"role": "user", "content": "What is the weather?"}]}
assert agent.invoke(asked)["messages"][-1].content == "It rains in Oslo."
pieces = [piece for piece, _ in agent.stream(asked, stream_mode="messages") if piece.type == "AIMessageChunk"]
assert "".join(str(piece.content) for piece in pieces) == "It rains in Oslo."
