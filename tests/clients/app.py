"""kafkasse, and a page that reads a stream with the EventSource example of docs/clients.md."""

from __future__ import annotations

from flask import Flask

from kafkasse.app import create_app
from kafkasse.config import Config
from tests.clients.programs import docs_example

# The page prints each event to the browser's log. A browser escapes no character that encodeURIComponent() returns.
PAGE = """<!doctype html>
<title>events</title>
<script>
%s
const print = ({ type, lastEventId, data }) =>
  console.log("EVENT " + encodeURIComponent(JSON.stringify({ event: type, id: lastEventId, data })));
follow(new URLSearchParams(location.search).get("stream"), { position: print, message: print, gap: print });
</script>
"""


def create() -> Flask:
    """Create the app."""
    app = create_app(Config.load())
    app.add_url_rule("/-/follow", view_func=lambda: PAGE % docs_example("function follow("))
    return app
