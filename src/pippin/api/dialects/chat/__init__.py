"""OpenAI's Chat Completions: decodes a body into a request, and encodes events as chunks and answers."""
