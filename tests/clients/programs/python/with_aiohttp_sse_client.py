"""Read a stream with aiohttp-sse-client, and print each event as one line of JSON. Argument: the URL.

The library reconnects when the server ends the stream. When the connection breaks, it raises an exception.
"""

import asyncio
import json
import sys

from aiohttp import ClientError
from aiohttp_sse_client.client import EventSource


async def follow(url: str) -> None:
    last_id = ""
    while True:
        try:
            async with EventSource(url, headers={"Last-Event-ID": last_id} if last_id else {}) as source:
                async for event in source:
                    print(json.dumps({"event": event.type, "id": event.last_event_id, "data": event.data}), flush=True)
                    last_id = event.last_event_id
        except (TimeoutError, ClientError, ConnectionError) as error:
            print("ended:", repr(error), file=sys.stderr)
        await asyncio.sleep(1)


asyncio.run(follow(sys.argv[1]))
