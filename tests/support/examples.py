"""The examples that hypothesis tries.

The tests that `make test` runs are the same each time. The profile `long` tries new examples in each run, and stores those
that fail in .hypothesis; add them to the test as `@example`.
"""

from __future__ import annotations

from hypothesis import settings

FAST, LONG = "fast", "long"  # the profiles of `make test-fast` and of long runs
FAST_SHARE = 10


def register_profiles() -> None:
    """Register the profile of the whole suite, the one with a tenth of the examples, and the one with new examples."""
    fixed = {"deadline": None, "derandomize": True, "database": None}  # a slow machine is not a failure
    usual = settings().max_examples
    settings.register_profile("kafkasse", **fixed)
    settings.register_profile(FAST, **fixed, max_examples=usual // FAST_SHARE)
    settings.register_profile(LONG, deadline=None, derandomize=False)
    settings.load_profile("kafkasse")


def is_long() -> bool:
    """Return whether this is a long run with new examples."""
    return settings.get_current_profile_name() == LONG


def examples(count: int) -> int:
    """Return `max_examples` for a test that needs another number than the default: a tenth in the fast profile."""
    return max(1, count // FAST_SHARE) if settings.get_current_profile_name() == FAST else count
