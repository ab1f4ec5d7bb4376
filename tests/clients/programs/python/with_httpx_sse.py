"""Read a stream with httpx-sse, and print each event as one line of JSON. Argument: the URL.

httpx-sse does not reconnect; this program does.
"""

import json
import sys
import time

import httpx
from httpx_sse import SSEError, connect_sse

last_id = ""
retry_ms = 2000
while True:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    try:
        with httpx.Client(timeout=60) as client, connect_sse(client, "GET", sys.argv[1], headers=headers) as source:
            for event in source.iter_sse():
                if event.data:  # comments, `retry:` and an `id:` without data are events, too
                    print(json.dumps({"event": event.event, "id": event.id, "data": event.data}), flush=True)
                last_id = event.id
                retry_ms = retry_ms if event.retry is None else event.retry
    except (httpx.TransportError, SSEError) as error:
        print("ended:", repr(error), file=sys.stderr)
    time.sleep(retry_ms / 1000)
