"""The WSGI app, configured by environment variables and a file: `gunicorn -c gunicorn.conf.py wsgi:app`."""

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402

from kafkasse.app import create_app  # noqa: E402
from kafkasse.errors import ConfigurationError  # noqa: E402

APP_LOAD_ERROR = 4  # with this exit code of a worker, gunicorn stops instead of starting the next worker

try:
    app = create_app()
except ConfigurationError as error:
    sys.stderr.write(f"{error.detail}\n")
    sys.exit(APP_LOAD_ERROR)
