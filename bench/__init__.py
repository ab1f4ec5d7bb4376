"""Benchmarks of kafkasse. Each run also measures baselines on the same machine. Run `make bench`; see __main__.py."""
