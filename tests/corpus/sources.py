"""Which types of which packages are requests: by package, address, and the field where one is only a part of a body."""

from typing import Final

GEMINI: Final = "/v1beta/models/{model:path}:generateContent"
BODY: Final = ""  # the type is the whole body
Types = dict[str, dict[str, dict[str, str]]]

_GOOGLE: Final = {
    "generationConfig": "GenerationConfig",
    "contents": "Content",
    "systemInstruction": "Content",
    "tools": "Tool",
    "toolConfig": "ToolConfig",
}
LISTS: Final = {"contents", "tools"}

PYTHON: Final[Types] = {
    "openai": {
        "/chat/completions": {
            BODY: "openai.types.chat.completion_create_params:CompletionCreateParamsStreaming"
        },
        "/completions": {BODY: "openai.types.completion_create_params:CompletionCreateParamsStreaming"},
        "/responses": {BODY: "openai.types.responses.response_create_params:ResponseCreateParamsStreaming"},
        "/embeddings": {BODY: "openai.types.embedding_create_params:EmbeddingCreateParams"},
        "/decisions": {BODY: "openai.types.decision_create_params:DecisionCreateParams"},
    },
    "anthropic": {
        "/messages": {BODY: "anthropic.types.beta.message_create_params:MessageCreateParamsStreaming"}
    },
    "google-genai": {GEMINI: {field: f"google.genai.types:{name}" for field, name in _GOOGLE.items()}},
    "ollama": {
        "/api/chat": {BODY: "ollama._types:ChatRequest"},
        "/api/generate": {BODY: "ollama._types:GenerateRequest"},
    },
    "typesafe-sdk": {"/systemone": {BODY: "typesafe_sdk._schemas.models:SystemOneRequest"}},
    "mcp": {
        "tools/list": {BODY: "mcp_types:ListToolsResult"},
        "tools/call": {BODY: "mcp_types:CallToolResult"},
    },
}
"""Modules and types. Of `mcp` they are what servers of tools answer, which are read here."""

JAVASCRIPT: Final[Types] = {
    "openai": {
        "/chat/completions": {
            BODY: "resources/chat/completions/completions.d.ts:ChatCompletionCreateParamsBase"
        },
        "/completions": {BODY: "resources/completions.d.ts:CompletionCreateParamsBase"},
        "/responses": {BODY: "resources/responses/responses.d.ts:ResponseCreateParamsBase"},
        "/embeddings": {BODY: "resources/embeddings.d.ts:EmbeddingCreateParams"},
        "/decisions": {BODY: "resources/decisions.d.ts:DecisionCreateParams"},
    },
    "@anthropic-ai/sdk": {
        "/messages": {BODY: "resources/beta/messages/messages.d.ts:MessageCreateParamsBase"}
    },
    "@google/genai": {GEMINI: {field: f"dist/genai.d.ts:{name}" for field, name in _GOOGLE.items()}},
    "ollama": {
        "/api/chat": {BODY: "dist/browser.d.ts:ChatRequest"},
        "/api/generate": {BODY: "dist/browser.d.ts:GenerateRequest"},
    },
}
"""Declarations and interfaces."""
RUN: Final = {"ai": ("/chat/completions", "ai_sdk.mjs", ("@ai-sdk/openai-compatible",))}
"""Packages whose requests have no type: what a program sends that uses them, and what they need beside them."""
