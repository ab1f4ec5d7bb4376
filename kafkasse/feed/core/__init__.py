"""The core of the feeds: what decides which bytes a client receives.

It does no I/O, has no clock, and does not switch greenlets: the caller passes in records, changes and the time. Only a hook
of an encoder, which is a user's code, may let other greenlets run within a step.
`make lint` checks its imports.
"""
