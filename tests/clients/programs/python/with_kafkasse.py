"""Read a stream with kafkasse_client.Stream, and print each event as one line of JSON. Argument: the URL.

The program keeps its token until the server rejects it, and its position in a file.
"""

import json
import sys
from urllib.parse import urljoin

import requests

from kafkasse_client import FileStore, Stream

token = ""


def current_token(refresh: bool) -> str:
    global token
    if refresh or not token:
        response = requests.get(urljoin(sys.argv[1], "/-/token"), timeout=60)
        response.raise_for_status()
        token = response.text
    return token


for event in Stream(sys.argv[1], token=current_token, store=FileStore("position")):
    print(json.dumps({"event": event.type, "id": event.id, "data": event.data}), flush=True)
