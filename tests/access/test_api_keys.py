"""API keys: how they are created, stored, compared and revoked."""

from __future__ import annotations

import hmac
from pathlib import Path
from unittest import mock

import pytest

from kafkasse.access import InvalidToken
from kafkasse.access.api_keys import ApiKeys, create_key
from kafkasse.errors import ConfigurationError
from tests.access.conftest import LOGGER


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def guard_of(file: Path, *lines: str) -> ApiKeys:
    if lines:
        file.write_text("\n".join(lines))
    return ApiKeys("partners", str(file), LOGGER)


def test_a_key_identifies_its_owner(file):
    """The owner is the name of the visitor, and the claim `sub`. Comments and empty lines do not count."""
    (first, first_line), (second, second_line) = create_key("a"), create_key("b")

    visitors = [guard_of(file, "# partners", "", first_line, second_line).identify(key) for key in (first, second)]

    assert [("partners", "a", {"sub": "a"}), ("partners", "b", {"sub": "b"})] == [
        (visitor.guard, visitor.name, visitor.claims) for visitor in visitors
    ]


def test_the_file_does_not_contain_the_key():
    """The line contains a hash. Two keys of one name are different."""
    key, line = create_key("a")

    assert key not in line
    assert key.removeprefix("kafkasse_") not in line
    assert create_key("a") != (key, line)


def test_rejects_every_other_text(file):
    """A key that was changed, and a key of another file, are unknown. The hash itself is not a key."""
    key, line = create_key("a")
    guard = guard_of(file, line)

    for given in (key + "x", key[:-1], create_key("a")[0]):
        with pytest.raises(InvalidToken, match=r"The API key is unknown or was revoked\."):
            guard.identify(given)
    for given in ("", line.partition(":")[2]):
        with pytest.raises(InvalidToken, match=r"The token is not an API key\."):
            guard.identify(given)


def test_compares_in_constant_time(file, monkeypatch):
    """The final comparison is hmac.compare_digest(), for unknown keys too."""
    key, line = create_key("a")
    guard = guard_of(file, line)
    compare = mock.Mock(side_effect=hmac.compare_digest)
    monkeypatch.setattr("hmac.compare_digest", compare)

    guard.identify(key)
    with pytest.raises(InvalidToken):
        guard.identify(create_key("a")[0])

    assert 2 == compare.call_count


def test_a_changed_file_takes_effect(file, monkeypatch):
    """A key that was added is accepted, and one that was removed is not current any more."""
    monkeypatch.setattr("kafkasse.access.watched_file.CHECK_INTERVAL_S", 0)
    (old, old_line), (new, new_line) = create_key("a"), create_key("a")
    guard = guard_of(file, old_line)
    visitor, version = guard.identify(old), guard.version

    file.write_text(new_line)

    assert not guard.is_current(visitor)
    assert guard.is_current(guard.identify(new))
    assert version != guard.version


@pytest.mark.parametrize("text", ["kafkasse_secret", "a:b", "a:" + "0" * 63, "a b:" + "0" * 64, "a:" + "G" * 64])
def test_an_invalid_line_is_an_error_that_does_not_quote_it(file, text):
    """The error names the line and the command that prints a valid one."""
    with pytest.raises(ConfigurationError) as rejected:
        guard_of(file, "# comment", text)

    assert rejected.value.detail.startswith("guards.partners.api_keys.file: line 2 must be NAME:HASH")
    assert text not in rejected.value.detail


def test_a_missing_file_is_an_error(file):
    """The error does not contain the path, which may be a key that was written into the wrong place."""
    with pytest.raises(ConfigurationError) as rejected:
        guard_of(file)

    assert "guards.partners.api_keys.file: the file cannot be read: No such file or directory." == rejected.value.detail


def test_the_error_says_where_a_relative_path_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigurationError) as rejected:
        guard_of(Path("keys"))

    assert f"Its path is relative to the working directory, {tmp_path}." in rejected.value.detail
