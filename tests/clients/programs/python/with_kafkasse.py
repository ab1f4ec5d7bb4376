"""Read a stream with kafkasse.client.Stream, and print each event as one line of JSON. Argument: the URL."""

import json
import sys

from kafkasse.client import Stream

for event in Stream(sys.argv[1]):
    print(json.dumps({"event": event.type, "id": event.id, "data": event.data}), flush=True)
