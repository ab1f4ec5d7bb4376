"""Prints each record of a stream as a line of JSON, with the official client: python client.py URL long-poll|sse

The client does not retry when the server closes the connection, so this program continues at the last offset.
"""

from __future__ import annotations

import json
import sys
import time

import httpx
from durable_streams import stream

url, live = sys.argv[1:]
offset = "-1"
while True:
    try:
        with stream(url, offset=offset, live=live) as response:  # type: ignore[arg-type]
            for event in response.iter_events(mode="json"):
                for item in event.data:
                    print(json.dumps(item), flush=True)
                offset = event.next_offset
    except httpx.TransportError:
        time.sleep(0.1)
