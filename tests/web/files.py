"""Check the headers of the files of the demo and of the console."""

from __future__ import annotations

from flask.testing import FlaskClient

VALIDATORS = {"If-None-Match": "ETag", "If-Modified-Since": "Last-Modified"}  # Flask 2.0 sends no ETag


def check_headers(client: FlaskClient, path: str, **headers: str) -> None:
    """Check that a file forbids inline scripts, inline styles and sniffing, and that its revalidation gets a 304."""
    response = client.get(path, headers=headers)

    assert 200 == response.status_code
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert ("nosniff", "no-cache") == (response.headers["X-Content-Type-Options"], response.headers["Cache-Control"])
    known = {name: response.headers[each] for name, each in VALIDATORS.items() if each in response.headers}
    revalidated = client.get(path, headers=headers | known)
    assert (304, b"") == (revalidated.status_code, revalidated.data)
