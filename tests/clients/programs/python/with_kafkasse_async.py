"""Read a stream with kafkasse_client.AsyncStream, and print each event as one line of JSON. Argument: the URL.

The program keeps its token until the server rejects it, and its position in a file.
"""

import asyncio
import json
import sys
from urllib.parse import urljoin

import aiohttp

from kafkasse_client import AsyncStream, FileStore


async def main() -> None:
    token = ""
    async with aiohttp.ClientSession() as session:

        async def current_token(refresh: bool) -> str:
            nonlocal token
            if refresh or not token:
                async with session.get(urljoin(sys.argv[1], "/-/token"), raise_for_status=True) as response:
                    token = await response.text()
            return token

        store = FileStore("position")
        async for event in AsyncStream(sys.argv[1], token=current_token, store=store, session=session):
            print(json.dumps({"event": event.type, "id": event.id, "data": event.data}), flush=True)


asyncio.run(main())
