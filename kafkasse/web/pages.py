"""The demo page, which displays the Top 3 as they change. This module serves static files; the page reads the stream.

All URLs in the files are relative, so that the page works under any prefix, including one that only a proxy knows. All paths
except `/about` start with `/-/`, so they cannot be topic names.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, redirect, send_from_directory

ASSETS = Path(__file__).parents[1] / "assets"
PAGE = ASSETS / "demo"
CLIENT = ASSETS / "javascript/kafkasse.js"

NAME = "kafkasse_pages"  # of the blueprint
PAGE_STREAM = "topn/updates"  # the stream that the page reads

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # Browsers revalidate each file and usually receive a short 304, so the page and its scripts always match.
    "Cache-Control": "no-cache",
}


def pages() -> Blueprint:
    """Create a blueprint with the page and its assets."""
    blueprint = Blueprint(NAME, __name__, static_folder=PAGE / "assets", static_url_path="/-/page")
    blueprint.add_url_rule("/-/demo", "index", partial(send_from_directory, PAGE, "index.html"))
    blueprint.add_url_rule("/about", "about", _about)
    client = partial(send_from_directory, CLIENT.parent, CLIENT.name)
    blueprint.add_url_rule(f"/-/page/{CLIENT.name}", "client", client)
    blueprint.after_request(add_headers)
    return blueprint


def _about() -> Any:
    """Lead to the part of the page that explains what it shows and how it works, as the first Top-N demo's `/about` did."""
    response = redirect("-/demo#how")
    response.autocorrect_location_header = False  # old versions of Werkzeug add a host, which a proxy may have changed
    return response


def add_headers(response: Response) -> Response:
    """Add the headers that all files of the pages have."""
    response.headers.update(HEADERS)
    return response
