"""The core of the feeds: what decides which bytes a client receives.

It does no I/O, has no clock, and never lets other greenlets run: the caller passes in records, changes and the time.
`make lint` checks its imports.
"""
