"""Read a stream with kafkasse.client.AsyncStream, and print each event as one line of JSON. Argument: the URL."""

import asyncio
import json
import sys

from kafkasse.client import AsyncStream


async def main() -> None:
    async for event in AsyncStream(sys.argv[1]):
        print(json.dumps({"event": event.type, "id": event.id, "data": event.data}), flush=True)


asyncio.run(main())
