"""The number of examples that hypothesis tries."""

from __future__ import annotations

from hypothesis import settings

FAST = "fast"  # the profile of `make test-fast`
FAST_SHARE = 10


def register_profiles() -> None:
    """Register the profile of the whole suite, and the one with a tenth of the examples."""
    settings.register_profile("kafkasse", deadline=None)  # a slow machine is not a failure
    settings.register_profile(FAST, deadline=None, max_examples=settings().max_examples // FAST_SHARE)
    settings.load_profile("kafkasse")


def examples(count: int) -> int:
    """Return `max_examples` for a test that needs another number than the default: a tenth in the fast profile."""
    return max(1, count // FAST_SHARE) if settings.get_current_profile_name() == FAST else count
