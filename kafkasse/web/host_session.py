"""Keeps requests for streams from saving a session of the host app that they have not changed.

A stream may open slowly. If the visitor logs out meanwhile, saving the session that the request has loaded would undo the
logout: some extensions save each session, and Flask renews the cookie of a permanent one with each response.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, current_app, request, session

ENVIRON_KEY = "kafkasse.keeps_session"


def keep_unchanged_session() -> None:
    """Do not save the session of the current request unless a function of the app has changed it."""
    request.environ[ENVIRON_KEY] = True
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    interface: Any = app.session_interface
    # Many apps set session.permanent before each request, which counts as a change.
    if session.modified and dict(session) == dict(interface.open_session(app, request) or {}):
        session.modified = False
    save = interface.save_session
    if getattr(save, "skips_streams", False):
        return

    # Flask has no hook between the last after_request function, which may change the session, and saving it.
    def save_session(app: Flask, current: Any, response: Any) -> None:
        if current.modified or ENVIRON_KEY not in request.environ:
            save(app, current, response)

    save_session.skips_streams = True  # type: ignore[attr-defined]
    interface.save_session = save_session
