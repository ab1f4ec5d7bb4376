"""kafkasse, and a page that reads a stream with the browser's EventSource."""

from __future__ import annotations

from flask import Flask

from kafkasse.app import create_app
from kafkasse.config import Config

# The script prints each event to the browser's console. encodeURIComponent() leaves nothing that a browser would escape.
PAGE = """<!doctype html>
<title>events</title>
<script>
function follow(url, lastEventId) {
  const address = new URL(url, location);
  if (lastEventId) address.searchParams.set("lastEventId", lastEventId);
  const source = new EventSource(address);
  for (const type of ["position", "message", "delete", "base64", "gap", "error"]) {
    source.addEventListener(type, (event) => {
      if (event instanceof MessageEvent) {
        lastEventId = event.lastEventId;
        const printed = { event: type, id: event.lastEventId, data: event.data };
        console.log("EVENT " + encodeURIComponent(JSON.stringify(printed)));
      } else if (source.readyState === EventSource.CLOSED) {
        setTimeout(() => follow(url, lastEventId), 1000);
      }
    });
  }
}
follow(new URLSearchParams(location.search).get("stream"));
</script>
"""


def create() -> Flask:
    """Create the app."""
    app = create_app(Config.load())
    app.add_url_rule("/-/follow", view_func=lambda: PAGE)
    return app
