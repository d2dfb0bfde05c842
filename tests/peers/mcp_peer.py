"""Calls the tools of an MCP server with the client of the Python package, and prints the answers as one JSON array.

    mcp_peer.py MODE PROGRAM ARGUMENT …

MODE is that of the client: `legacy` agrees on a version at the start, `auto` names it in each request where the server can. Standard
input is a JSON array of steps: {"list": true}, {"call": NAME, "arguments": {…}}, or {"at_once": [CALL, …]}. The first answer is what the
server says of itself.
"""

import asyncio
import json
import os
import sys

from mcp import Client, MCPError, StdioServerParameters


def plain(value):
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


async def answer(client, step):
    if "at_once" in step:
        return list(await asyncio.gather(*(answer(client, each) for each in step["at_once"])))
    try:
        if "list" in step:
            return [plain(tool) for tool in (await client.list_tools()).tools]
        return plain(await client.call_tool(step["call"], step.get("arguments")))
    except MCPError as error:
        return {"protocol_error": {"code": error.code, "message": error.message}}


async def main():
    mode, program, *arguments = sys.argv[1:]
    steps = json.load(sys.stdin)
    server = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
    async with Client(server, mode=mode) as client:
        answers = [{"version": client.protocol_version, "server": plain(client.server_info), "instructions": client.instructions}]
        for step in steps:
            answers.append(await answer(client, step))
    print(json.dumps(answers), flush=True)


asyncio.run(main())
