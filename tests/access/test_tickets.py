"""Tickets: who can redeem them, how often, and where the secret and the used tickets are stored."""

from __future__ import annotations

import shutil
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkasse import end_streams
from kafkasse.access import InvalidToken, Visitor
from kafkasse.access.tickets import LIFETIME_S, MAX_WINDOWS, WINDOW_S, Tickets, open_tickets
from kafkasse.errors import AccessUnavailable, BadRequest, ConfigurationError
from tests.access.conftest import LOGGER
from tests.support.waiting import wait_until

VISITOR = Visitor("customers", "ada", {"sub": "ada", "role": ["admin"]}, 4_000_000_000.0)
SECRET = b"s" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def open_with(guards: dict[str, object], name: str = "kafkasse", secret_file: str = "") -> Tickets:
    return open_tickets(guards, secret_file, name, LOGGER)


@pytest.mark.parametrize("visitor", [VISITOR, Visitor("partners", "a", {"sub": "a"}, key_hash="0" * 64)])
def test_a_ticket_contains_the_whole_visitor(tmp_path, visitor):
    tickets = Tickets(SECRET, "", tmp_path)

    ticket = tickets.issue(visitor, "/t")

    assert visitor == tickets.redeem(ticket, "/t")
    assert visitor.guard not in ticket


def test_a_ticket_is_valid_for_half_a_minute(tmp_path):
    now = 1_000_000.0
    tickets = Tickets(SECRET, "", tmp_path, lambda: now)
    first, second = tickets.issue(VISITOR, "/t"), tickets.issue(VISITOR, "/t")

    now += LIFETIME_S
    assert VISITOR == tickets.redeem(first, "/t")
    now += 1
    with pytest.raises(InvalidToken, match="expired"):
        tickets.redeem(second, "/t")


def test_a_ticket_is_not_valid_after_a_logout(tmp_path):
    """Otherwise, it would open a stream after the logout. A ticket that is issued later is valid."""
    now = 1_000_000.0
    tickets = Tickets(SECRET, "", tmp_path, lambda: now)
    grace, other = Visitor("session", "grace"), Visitor("session", "joan")
    early, of_other = tickets.issue(grace, "/t"), tickets.issue(other, "/t")

    now += LIFETIME_S
    end_streams("grace")

    with pytest.raises(InvalidToken):
        tickets.redeem(early, "/t")
    assert [other, grace] == [tickets.redeem(ticket, "/t") for ticket in (of_other, tickets.issue(grace, "/t"))]


def test_old_files_are_deleted(tmp_path):
    now = 0.0
    tickets = Tickets(SECRET, "", tmp_path, lambda: now)

    for window in range(10):
        now = float(window * WINDOW_S)
        tickets.redeem(tickets.issue(VISITOR, "/t"), "/t")

    wait_until(lambda: len(list(tmp_path.iterdir())) == MAX_WINDOWS + 1)


def test_processes_of_one_machine_share_tickets(folder):
    """The first process creates the secret. Only one of them accepts a ticket."""
    one, other = open_with({"a": 1}), open_with({"a": 1})
    ticket = one.issue(VISITOR, "/t")

    assert VISITOR == other.redeem(ticket, "/t")
    with pytest.raises(InvalidToken):
        one.redeem(ticket, "/t")
    (private,) = folder.iterdir()
    assert [0o700, 0o600] == [stat.S_IMODE(path.stat().st_mode) for path in (private, private / "secret")]


@pytest.mark.parametrize(("guards", "name"), [({"a": 2}, "kafkasse"), ({"a": 1}, "second")])
def test_other_guards_do_not_accept_the_ticket(folder, guards, name):
    """Two servers of one user share the secret, but a ticket of one does not identify visitors of the other."""
    ticket = open_with({"a": 1}).issue(VISITOR, "/t")

    with pytest.raises(InvalidToken):
        open_with(guards, name).redeem(ticket, "/t")


def test_an_app_with_another_login_does_not_accept_the_ticket(folder, monkeypatch):
    """Two apps of one system user may have login functions with the same name, but different visitors."""
    (folder / "ticket-secret").write_bytes(SECRET)

    def login(_: object) -> None:
        """The login function of both apps."""

    login.__module__ = "streams"
    apps, machines = [], []
    for app in ("one", "other"):
        monkeypatch.setitem(sys.modules, "streams", SimpleNamespace(__file__=f"/srv/{app}/streams.py"))
        apps.append(open_with({"session": login}))
        machines.append(open_with({"session": login}, secret_file=str(folder / "ticket-secret")))

    with pytest.raises(InvalidToken):
        apps[1].redeem(apps[0].issue(VISITOR, "/t"), "/t")
    # With a secret file, the operator has decided that the machines serve the same app, perhaps in different directories.
    assert VISITOR == machines[1].redeem(machines[0].issue(VISITOR, "/t"), "/t")


def test_machines_with_the_same_secret_file_accept_tickets(folder, monkeypatch):
    (folder / "ticket-secret").write_bytes(SECRET)
    machines = []
    for name in ("one", "other"):
        (folder / name).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(folder / name))
        machines.append(open_with({"a": 1}, secret_file=str(folder / "ticket-secret")))
    ticket = machines[0].issue(VISITOR, "/t")

    assert [VISITOR] * 2 == [machine.redeem(ticket, "/t") for machine in machines]


def test_a_ticket_that_cannot_work_is_rejected(tmp_path):
    """Large claims do not fit into a URL. If the use of a ticket cannot be recorded, the ticket could be used twice."""
    (tmp_path / "file").touch()
    tickets = Tickets(SECRET, "", tmp_path / "file")

    with pytest.raises(BadRequest, match="too large for a ticket"):
        tickets.issue(Visitor("a", claims={"x": "x" * 5000}), "/t")
    with pytest.raises(AccessUnavailable):
        tickets.redeem(tickets.issue(VISITOR, "/t"), "/t")


def test_tickets_work_after_the_temporary_directory_was_cleaned(folder):
    """Some systems delete old files there. A worker that starts later must know the same secret."""
    worker = open_with({})
    (private,) = folder.iterdir()
    shutil.rmtree(private)

    assert VISITOR == worker.redeem(worker.issue(VISITOR, "/t"), "/t")
    wait_until((private / "secret").exists)
    assert 0o700 == stat.S_IMODE(private.stat().st_mode)
    assert VISITOR == open_with({}).redeem(worker.issue(VISITOR, "/t"), "/t")


@pytest.mark.parametrize("kind", ["readable by others", "a link", "a file"])
def test_a_folder_that_others_may_have_created_is_not_used(folder, kind):
    """Another user of the machine could read the secret in it. The error says how to choose another folder."""
    open_with({})
    (private,) = folder.iterdir()
    if kind == "readable by others":
        private.chmod(0o755)
    else:
        moved = private.rename(folder / "moved")
        if kind == "a link":
            private.symlink_to(moved)
        else:
            private.touch()

    with pytest.raises(ConfigurationError, match="Set TMPDIR to use another one"):
        open_with({})
