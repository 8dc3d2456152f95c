"""An MCP server over stdio, in the protocol's own words: what stands for `@modelcontextprotocol/server-filesystem`.

Without the library, whose import takes longer than all that the examples ask of it.
"""

import json
import sys
from typing import Any

TOOL = {
    "name": "list_directory",
    "description": "Lists a folder.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def result_of(method: str, given: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": given["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "filesystem", "version": "1"},
            }
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            path = given["arguments"]["path"]
            return {"content": [{"type": "text", "text": f"{path}/file1.txt {path}/file2.txt"}]}
        case _:
            return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer = result_of(message["method"], message.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)
