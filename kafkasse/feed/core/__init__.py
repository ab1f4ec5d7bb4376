"""The core of the feeds: what decides which bytes a client receives.

It does no I/O and has no clock: the caller passes in records, changes, the time and the encoder. Other greenlets may run
during a call only in functions that were passed to the encoder: hooks, and `take_turn` (records/encoder.py). `make lint`
checks the imports of the core.
"""
