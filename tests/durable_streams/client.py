"""Prints each record of a stream, and each gap, as a line of JSON, with the official client: python client.py URL LIVE

The client does not retry when the server closes the connection, so this program continues at the last offset. After 410, it
continues where the response says.
"""

from __future__ import annotations

import json
import sys
import time

import httpx
from durable_streams import DurableStreamError, FetchError, RetentionGoneError, stream

url, live = sys.argv[1:]
offset = "-1"
while True:
    try:
        with stream(url, offset=offset, live=live) as response:  # type: ignore[arg-type]
            for event in response.iter_events(mode="json"):
                for item in event.data:
                    print(json.dumps(item, separators=(",", ":")), flush=True)
                offset = event.next_offset
    except RetentionGoneError as error:
        problem = json.loads(error.details)
        for gap in problem["gaps"]:
            print(json.dumps({"event": "gap", **gap}, separators=(",", ":")), flush=True)
        offset = problem["next_offset"]
    except (httpx.TransportError, DurableStreamError, FetchError):
        time.sleep(0.1)
