"""The WSGI app, configured from the environment: `gunicorn -c gunicorn.conf.py wsgi:app`."""

from gevent import monkey

monkey.patch_all()

from kafkasse.app import create_app  # noqa: E402

app = create_app()
