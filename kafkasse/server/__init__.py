"""gunicorn with gevent, as kafkasse needs it."""
