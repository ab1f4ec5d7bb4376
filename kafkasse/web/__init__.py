"""HTTP: requests, streams and the demo page. Apart from kafkasse/app.py, only this package uses Flask."""
