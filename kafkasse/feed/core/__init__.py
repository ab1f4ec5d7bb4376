"""The core of the feeds: what decides which bytes a client receives.

It does no I/O and has no clock: the caller passes in records, changes, the time and the encoder. Other greenlets may run
within a step only in functions that the encoder received: hooks, and `take_turn` (records/encoder.py). `make lint` checks
the imports of the core.
"""
