"""Finds the text that fits a question: embeddings, and the same by a reranker."""

import os

import httpx
from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

TEXTS = ["The cat sleeps on the sofa.", "Our revenue grew in March.", "A kitten plays with the ball."]
QUESTION = "What does the cat do?"

vectors = [each.embedding for each in client.embeddings.create(model=MODEL, input=[QUESTION, *TEXTS]).data]
question, *others = vectors
for text, vector in zip(TEXTS, others, strict=True):
    print(f"{sum(a * b for a, b in zip(question, vector, strict=True)):6.3f}  {text}")

ranked = httpx.post(
    f"{URL}/v1/rerank", json={"model": MODEL, "query": QUESTION, "documents": TEXTS}, timeout=600
)
if ranked.is_success:
    print("first by rank:", TEXTS[ranked.json()["results"][0]["index"]])
else:
    print("no ranks:", ranked.json()["error"]["message"])
