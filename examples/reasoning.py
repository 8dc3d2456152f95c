"""What a model thinks before it answers, apart from the answer, and how much it may think."""

import os

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

question = [{"role": "user", "content": "Think: what is two times two?"}]
for settings in ({"enable_thinking": True, "thinking_budget": 200}, {"enable_thinking": False}):
    answer = client.chat.completions.create(
        model=MODEL, messages=question, max_tokens=300, extra_body=settings
    )
    message = answer.choices[0].message
    print("thought:", getattr(message, "reasoning_content", None) or "-")
    print("answer: ", message.content)
