"""Print the changes of a stream that the server sends as lines of JSON. Argument: the URL."""

import json
import sys

import requests

with requests.get(sys.argv[1], headers={"Accept": "application/json"}, stream=True, timeout=30) as response:
    for line in filter(None, response.iter_lines()):
        if json.loads(line)["meta"]["domain"] != "canary":
            print(line.decode(), flush=True)
