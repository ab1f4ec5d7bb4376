"""A short run of all fuzz targets. Inputs that once failed are examples."""

from __future__ import annotations

import base64

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.attacks import targets
from tests.support.examples import examples

bounded = settings(max_examples=examples(450), deadline=None, suppress_health_check=list(HealthCheck))

NAMES = ["topic", "partition", "offset", "t", "_kafka"]
FIELDS = [*NAMES, "event: x", "id: 0", "data: ", "null", "9" * 30, "1e9", "-1", "0"]
MARKS = [*'[]{},:"\\~ ', "\n", "\r", "\r\n", "\n\n", "\0", "\x1e", "\ufeff", "\u2028", "é"]
words = st.sampled_from([*FIELDS, *MARKS])
texts = (st.lists(words, max_size=20).map("".join) | st.text()).map(lambda text: text.encode("utf-8", "surrogatepass"))
anything = st.binary(max_size=400) | texts
compact = st.binary(max_size=60).map(lambda raw: b"~" + base64.urlsafe_b64encode(raw))
UNUSUAL = ["deserializer", "logger", "2026-99-99", "!!int", "!!timestamp", "!!python/name:os", "&a", "*a", "? ", "<<"]
VALUES = ["5", "/a", "path", "topics", "0x", "0b_", ".nan", "1:99", "~", "true", "1e400", "9" * 5000]
PUNCTUATION = [": ", "\n", "- ", "  ", "{", "}", "[", "]", ", ", "'", '"', "|"]
yaml_words = st.sampled_from([*targets.SETTINGS, *UNUSUAL, *VALUES]) | st.sampled_from(PUNCTUATION)
yaml = st.lists(yaml_words, max_size=12).map(lambda parts: "".join(parts).encode())
setting = st.sampled_from([*targets.SETTINGS, *UNUSUAL])
values = st.sampled_from([*UNUSUAL, *VALUES, "[", "{}", "[[]]", "{a: b}", "{5: 6}", "{a: {path: /a, topics: [t]}}"])
lines = st.lists(st.tuples(setting, values).map(": ".join), max_size=3).map(lambda rows: "\n".join(rows).encode())


CASES = {
    "position": anything | compact,
    "forged_batches": anything | st.binary(min_size=1, max_size=9),
    "file": anything | yaml | lines,
    "environment": anything | values.map(lambda text: b"\0" + text.encode()),
}
# A response of a broker whose first partition ends in a tag of 2^64 bytes, followed by a second partition.
HUGE_LENGTH = (
    bytes(15) + b"\x02" + bytes(16) + b"\x03" + bytes(30) + b"\x01" + bytes(4) + b"\1\1\1" + b"\xff" * 9 + b"\1"
)
FAILED = {
    "answers": [HUGE_LENGTH],
    "file": [b"0b_", b"heartbeat_s: 2026-99-99", b"5: 6", b"logger: x", b"[" * 5000],
    "environment": [b"\0" + b"9" * 5000],
}


@pytest.mark.parametrize("name", targets.TARGETS)
def test_random_bytes(name):
    """No bytes make any target fail, also if they resemble its input."""
    for data in FAILED.get(name, []):
        targets.TARGETS[name](data)

    @bounded
    @given(CASES.get(name, anything))
    def fuzz(data: bytes) -> None:
        targets.TARGETS[name](data)

    fuzz()
