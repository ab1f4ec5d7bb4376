"""Print the changes of a stream with sseclient-py, which does not reconnect. Argument: the URL."""

import json
import sys

import requests
from sseclient import SSEClient

headers = {"Accept": "text/event-stream"}
while True:
    with requests.get(sys.argv[1], headers=headers, stream=True, timeout=30) as response:
        for event in SSEClient(response).events():
            headers["Last-Event-ID"] = event.id
            if event.event == "message" and (change := json.loads(event.data))["meta"]["domain"] != "canary":
                print(json.dumps(change), flush=True)
