"""gunicorn's settings for `gunicorn -c gunicorn.conf.py wsgi:app`; see kafkasse/server/gunicorn_conf.py."""

from kafkasse.server.gunicorn_conf import *  # noqa: F403 - gunicorn reads the names of this module
