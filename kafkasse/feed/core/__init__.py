"""The core of the feeds: what decides which bytes a client receives.

It does no I/O and has no clock: the caller passes in records, changes and the time. Only the encoder may let other greenlets
run within a step: in a hook, which is a user's code, and while it reads a large value (records/encoder.py).
`make lint` checks the imports of the core.
"""
