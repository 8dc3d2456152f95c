"""OpenAI's Completions: raw prompts, several in one body, and the legacy form of log probabilities."""
