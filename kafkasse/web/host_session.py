"""Keeps requests for streams from saving a session of the host app that they have not changed.

A stream may open slowly. If the visitor logs out meanwhile, saving the session that the request has loaded would undo the
logout: some extensions save each session, and Flask renews the cookie of a permanent one with each response.

A session that was changed is saved, but no cache may store its cookie together with a chunk.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from flask import Flask, current_app, request, session

from kafkasse.web.headers import NOT_STORED

ENVIRON_KEY = "kafkasse.session"  # the data of the session before the app could change it


def keep_unchanged_session() -> None:
    """Do not save the session of the current request unless a function of the app changes it."""
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    interface: Any = app.session_interface
    if interface.is_null_session(session._get_current_object()):  # type: ignore[attr-defined]
        return  # an app without a secret key has no sessions
    # A function of the app may have changed the session already.
    original = interface.open_session(app, request) if session.modified else session
    request.environ[ENVIRON_KEY] = deepcopy(_data(original))
    save = interface.save_session
    if getattr(save, "skips_streams", False):
        return

    # Flask has no hook between the last after_request function, which may change the session, and saving it.
    def save_session(app: Flask, current: Any, response: Any) -> None:
        original = request.environ.pop(ENVIRON_KEY, None)  # the environ of a stream may stay in memory
        if original is None or original != _data(current):
            save(app, current, response)
            if original is not None and response.cache_control.public and "Set-Cookie" in response.headers:
                response.headers["Cache-Control"] = NOT_STORED

    save_session.skips_streams = True  # type: ignore[attr-defined]
    interface.save_session = save_session


def _data(session: Any) -> dict[str, Any]:
    """Return what a session contains, without its lifetime: many apps set session.permanent for each request."""
    return {name: value for name, value in dict(session or {}).items() if name != "_permanent"}
