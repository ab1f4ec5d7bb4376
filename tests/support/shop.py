"""An app for tests of WSGI servers, with the topic `t` in memory. gevent patches it only if PATCH is set."""

from __future__ import annotations

import os
import sys
import threading
import time

if os.environ.get("PATCH"):
    from gevent import monkey

    monkey.patch_all()

from flask import Flask

import kafkasse
from kafkasse.log.memory import MemoryLog

log = MemoryLog()
log.create("t")
lock = threading.Lock()  # created when the app is loaded, as in many libraries
app = Flask(__name__)
config = kafkasse.Config.load(allowed_topics=["*"], public=True)
app.register_blueprint(kafkasse.blueprint(config, log), url_prefix="/streams")


@app.get("/")
def page() -> str:
    """Wait while other requests may wait for the same lock."""
    with lock:
        time.sleep(0.05)
    return "page"


@app.post("/records")
def write() -> str:
    """Append a record to the topic."""
    log.append("t", b'{"n":1}')
    return "written"


if __name__ == "__main__":
    from gevent.pywsgi import WSGIServer

    WSGIServer(("127.0.0.1", int(sys.argv[1])), app).serve_forever()
