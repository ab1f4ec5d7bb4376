"""The animation in the README: a worker is killed while a page shows orders. `make animation` records it again.

A real run: a broker, gunicorn with one worker, and Chromium. The screenshots become an animated PNG.
"""
