"""kafkasse, and pages that read a stream with the EventSource example of docs/javascript.md and with kafkasse.js."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

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

STREAM = """
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
"""

# The page reloads itself when /-/generation returns another text.
RELOAD = """
const generation = () => fetch("/-/generation").then((response) => (response.ok ? response.text() : null), () => null);
const first = await generation();
setInterval(async () => {
  const now = await generation();
  if (now !== null && now !== first) location.reload();
}, 500);
"""

READ = STREAM + RELOAD
READ += """
for await (const { type, id, data } of new Stream(url, { token, store: sessionStorage })) print(type, id, data);
"""

# A frame has the connection, and passes the events to the page. When the frame is reloaded, the page connects.
SHARE = STREAM
SHARE += """
const frame = document.createElement("iframe");
frame.src = "/-/frame" + location.search;
document.documentElement.append(frame);
await new Promise((resolve) => addEventListener("message", resolve));
for await (const { type, id, data } of new Stream(url, { token, shared: true })) print(type, id, data);
"""
FRAME = STREAM + RELOAD
FRAME += """
new Stream(url, { token, shared: true, onState: ({ state }) => state === "open" && parent.postMessage(state) }).run({});
"""


def create() -> Flask:
    app = create_app(Config.load())
    app.add_url_rule(
        "/-/follow", "follow", lambda: PAGE % (docs_example("function follow(", "docs/javascript.md") + FOLLOW)
    )
    for name, script in (("read", READ), ("share", SHARE), ("frame", FRAME)):
        app.add_url_rule(f"/-/{name}", name, partial(PAGE.__mod__, script))
    app.add_url_rule("/-/token", "token", _token)
    generation = Path(os.environ["KAFKASSE_CONFIG"]).with_name("generation")
    app.add_url_rule("/-/generation", "generation", generation.read_text)
    app.add_url_rule("/-/kafkasse.js", "module", partial(send_from_directory, JAVASCRIPT, "kafkasse.js"))
    return app


def _token() -> str:
    return jwt.encode(payload(exp=int(time.time()) + int(os.environ["TOKEN_LIFETIME_S"])), SECRET, "HS256")
