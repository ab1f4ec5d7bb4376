"""Print the changes of a stream line by line, without a library for SSE. All data must be changes. Argument: the URL."""

import json
import sys

import requests

with requests.get(sys.argv[1], stream=True, timeout=30) as response:
    for line in response.iter_lines():
        if line.startswith(b"data: "):
            change = json.loads(line[6:])
            if change["meta"]["domain"] != "canary":
                print(json.dumps(change), flush=True)
