"""LlamaIndex: completion, chat, a stream, a tool call, embeddings. Run in an environment of its own."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

address = sys.argv[1]
model = OpenAILike(
    model="scripted",
    api_base=f"{address}/v1",
    api_key="none",
    context_window=8192,
    is_chat_model=True,
    is_function_calling_model=True,
)


def weather(city: str) -> str:
    """Tells the weather."""
    return f"rain in {city}"


assert model.complete("Hello").text == "Hello there."
assert model.chat([ChatMessage(role="user", content="Hello")]).message.content == "Hello there."
assert "".join(part.delta or "" for part in model.stream_complete("Hello")) == "Hello there."
response = model.predict_and_call([FunctionTool.from_defaults(weather)], "What is the weather?")
assert str(response) == "rain in Oslo", response

embedding = OpenAILikeEmbedding(model_name="scripted", api_base=f"{address}/v1", api_key="none")
assert len(embedding.get_text_embedding("a text")) > 0
