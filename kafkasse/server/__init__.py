"""gunicorn's gevent worker, adapted to streams."""
