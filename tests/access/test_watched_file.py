"""A file that is read again when it changes."""

from __future__ import annotations

import logging
from weakref import WeakSet

from kafkasse.access.watched_file import WatchedFile, outdated_count


def test_an_unexpected_error_of_the_parser_is_logged_and_counted_until_the_file_is_valid(tmp_path, monkeypatch, caplog):
    """The last valid content stays in effect. The log lines do not quote the error, which may contain a secret."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("kafkasse.access.watched_file.CHECK_INTERVAL_S", 0)
    monkeypatch.setattr("kafkasse.access.watched_file._files", WeakSet())  # not those of other tests
    path = tmp_path / "keys"
    path.write_text("1")
    file = WatchedFile(
        "ticket_secret_file", str(path), lambda data: {b"1": 1, b"22": 2}[data], logging.getLogger("test")
    )
    assert (1, 0) == (file.content, outdated_count())

    path.write_text("secret")

    assert (1, 1) == (file.content, outdated_count())
    assert ["ticket_secret_file: KeyError. The last valid content stays in effect."] == caplog.messages
    path.write_text("22")
    assert (0, 2) == (outdated_count(), file.content)
    assert ["ticket_secret_file: the file is valid again."] == caplog.messages[1:]
    path.write_text("1")
    assert (1, 2) == (file.content, len(caplog.messages))


def test_a_file_that_exists_and_cannot_be_read_is_logged_once(tmp_path, monkeypatch, caplog):
    """For example, its permissions are wrong. The log does not get a line each second."""
    monkeypatch.setattr("kafkasse.access.watched_file.CHECK_INTERVAL_S", 0)
    path = tmp_path / "keys"
    path.write_text("1")
    file = WatchedFile("guards.a.api_keys.file", str(path), bytes, logging.getLogger("test"))

    path.unlink()
    path.mkdir()  # root can read any file, but no directory

    assert [b"1"] * 3 == [file.content for _ in range(3)]
    assert 1 == len(caplog.messages)
