"""kafkasse, and pages that read a stream with the EventSource example of docs/clients.md and with kafkasse.js."""

from __future__ import annotations

import time
from functools import partial

import jwt
from flask import Flask, send_from_directory

from kafkasse.app import create_app
from kafkasse.config import Config
from tests.clients.programs import JAVASCRIPT, docs_example
from tests.support.issuer import SECRET, payload

# The pages print each event to the browser's log. A browser escapes no character that encodeURIComponent() returns.
PAGE = """<!doctype html>
<title>events</title>
<script type="module">
const print = (event, id, data) => console.log("EVENT " + encodeURIComponent(JSON.stringify({ event, id, data })));
const url = new URLSearchParams(location.search).get("stream");
%s
</script>
"""

FOLLOW = """
const handler = (event) => print(event.type, event.lastEventId, event.data);
follow(url, { position: handler, message: handler, gap: handler });
"""

READ = """
import { Stream } from "/-/kafkasse.js";

let cached;
async function token({ refresh }) {
  if (!cached || refresh) {
    const response = await fetch("/-/token");
    if (!response.ok) throw new Error(response.status);
    cached = await response.text();
  }
  return cached;
}
for await (const { type, id, data } of new Stream(url, { token })) print(type, id, data);
"""

LIFETIME_S = 6


def create() -> Flask:
    """Create the app."""
    app = create_app(Config.load())
    app.add_url_rule("/-/follow", "follow", lambda: PAGE % (docs_example("function follow(") + FOLLOW))
    app.add_url_rule("/-/read", "read", lambda: PAGE % READ)
    app.add_url_rule("/-/token", "token", _token)
    app.add_url_rule("/-/kafkasse.js", "module", partial(send_from_directory, JAVASCRIPT, "kafkasse.js"))
    return app


def _token() -> str:
    return jwt.encode(payload(exp=int(time.time()) + LIFETIME_S), SECRET, "HS256")
