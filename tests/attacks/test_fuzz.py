"""A short run of all fuzz targets. Inputs that once failed are examples."""

from __future__ import annotations

import base64

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.attacks import targets
from tests.support.examples import examples

bounded = settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))

FIELDS = [
    "topic",
    "partition",
    "offset",
    "t",
    "_kafka",
    "event: x",
    "id: 0",
    "data: ",
    "null",
    "9" * 30,
    "1e9",
    "-1",
    "0",
]
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


@pytest.mark.parametrize("name", targets.TARGETS)
def test_random_bytes(name: str) -> None:
    """No bytes make any target fail."""

    @bounded
    @given(anything)
    def fuzz(data: bytes) -> None:
        targets.TARGETS[name](data)

    fuzz()


@bounded
@given(compact)
def test_compact_ids(data: bytes) -> None:
    """No base64 makes the target `position` fail."""
    targets.position(data)


@bounded
@given(yaml | lines)
@example(b"0b_")
@example(b"heartbeat_s: 2026-99-99")
@example(b"5: 6")
@example(b"logger: x")
@example(b"[" * 5000)
def test_configuration_files(data: bytes) -> None:
    """No text that resembles a configuration makes the target `file` fail."""
    targets.file(data)


@bounded
@given(values.map(lambda text: b"\0" + text.encode()))
@example(b"\0" + b"9" * 5000)
def test_environment_variables(data: bytes) -> None:
    """No text that resembles a value makes the target `environment` fail."""
    targets.environment(data)


@bounded
@given(st.binary(min_size=1, max_size=9))
def test_forged_batches(data: bytes) -> None:
    """No batch makes the target fail, even with a correct checksum."""
    targets.forged_batches(data)


def test_a_response_with_a_huge_length() -> None:
    """A broker's response whose first partition ends in a tag of 2^64 bytes, followed by a second partition."""
    head, topic, partition = bytes(15) + b"\x02", bytes(16) + b"\x03", bytes(30) + b"\x01" + bytes(4) + b"\x01"

    targets.answers(head + topic + partition + b"\x01\x01" + b"\xff" * 9 + b"\x01")
