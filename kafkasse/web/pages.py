"""The page that shows the running Top 3, as files: no templates, no state, no idea of what the stream holds.

All addresses in the files are relative, so the pages work under any prefix, also one that only a proxy knows of. What is
not a page lies under `/-/page/`, which is no topic's name.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flask import Blueprint, Response, send_from_directory

PAGE = Path(__file__).parent / "page"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # StreamRequest for again each time, and answered 304: page and script always belong together, for a few bytes.
    "Cache-Control": "no-cache",
}


def pages() -> Blueprint:
    """`/`, `/about` and what they are made of. The page reads `topn/updates` beside it."""
    blueprint = Blueprint("kafkasse_pages", __name__, static_folder=PAGE / "assets", static_url_path="/-/page")
    blueprint.add_url_rule("/", "index", partial(send_from_directory, PAGE, "index.html"))
    blueprint.add_url_rule("/about", "about", partial(send_from_directory, PAGE, "about.html"))
    blueprint.after_request(_with_headers)
    return blueprint


def _with_headers(response: Response) -> Response:
    response.headers.update(HEADERS)
    return response
