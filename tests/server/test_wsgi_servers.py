"""Under every WSGI server, streams work, or the log names the command to use instead. No server hangs without a message."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.access.conftest import served
from tests.support.any_server import AnyServer
from tests.support.client import Client, fetch
from tests.support.docs import example
from tests.support.issuer import key_set, token
from tests.support.server import ROOT, TOOLS
from tests.support.waiting import TIMEOUT_S, wait_until

ADVICE = (
    "Run the app with `gunicorn --worker-class kafkasse.server.worker.Worker MODULE:APP` instead, or see"
    " docs/wsgi-servers.md."
)
SHOP = "tests.support.shop:app"
BIN = Path(sys.executable).parent
GUNICORN = f"{BIN}/gunicorn --bind 127.0.0.1:{{port}}"
WORKER = "--worker-class kafkasse.server.worker.Worker"
FLASK = f"{BIN}/flask --app {SHOP} run --port {{port}}"
PYWSGI = f"{sys.executable} -m tests.support.shop {{port}}"
WAITRESS = f"{BIN}/waitress-serve --listen 127.0.0.1:{{port}} {SHOP}"
PATCH = {"PATCH": "1"}
THREAD_COUNT = 16
THREADS = f"{GUNICORN} -k gthread --threads {THREAD_COUNT} 'kafkasse.app:create_app()'"
WAITRESS_THREADS = (
    f"{BIN}/waitress-serve --listen 127.0.0.1:{{port}} --threads {THREAD_COUNT} --call kafkasse.app:create_app"
)

# It must be compiled: `make tools`.
UWSGI = (
    f"{TOOLS}/uwsgi/bin/uwsgi --http-socket 127.0.0.1:{{port}} --home {sys.prefix} --master --die-on-term"
    f" --module {SHOP}"
)
# Debian's package. It runs Debian's Python, so the packages in our virtual environment must be for the same version.
MOD_WSGI_MODULE = Path(f"/usr/lib/apache2/modules/mod_wsgi.so-{sys.version_info.major}.{sys.version_info.minor}")
MOD_WSGI = (
    "/usr/sbin/apache2 -DFOREGROUND -c 'Listen 127.0.0.1:{port}' -c 'PidFile /tmp/kafkasse-{port}.pid' "
    f"-f {ROOT}/tests/server/mod_wsgi.conf"
)

WORKING = {
    "our worker": (f"{GUNICORN} {WORKER} {SHOP}", {}),
    "our worker with --preload": (f"{GUNICORN} {WORKER} --preload {SHOP}", {}),
    "our settings": (f"{GUNICORN} -c python:kafkasse.server.gunicorn_conf {SHOP}", {}),
    "gunicorn's gevent worker": (f"{GUNICORN} -k gevent {SHOP}", {}),
    "flask run in a patched app": (FLASK, PATCH),
    "gevent.pywsgi in a patched app": (PYWSGI, PATCH),
    "uWSGI with gevent": (f"{UWSGI} --gevent 1000 --gevent-early-monkey-patch", {}),
}
# The last value states whether the log names the command at startup. Otherwise, the first request for a stream logs it.
REJECTED = {
    "sync": (f"{GUNICORN} {SHOP}", {}, True),
    "sync in a patched app": (f"{GUNICORN} {SHOP}", PATCH, True),
    "gthread": (f"{GUNICORN} -k gthread --threads 4 {SHOP}", {}, True),
    "gevent with --preload": (f"{GUNICORN} -k gevent --preload {SHOP}", {}, True),
    "sync with --preload in a patched app": (f"{GUNICORN} --preload {SHOP}", PATCH, True),
    "flask run": (FLASK, {}, False),
    "flask run without threads": (f"{FLASK} --without-threads", PATCH, False),
    "gevent.pywsgi": (PYWSGI, {}, False),
    "waitress": (WAITRESS, {}, True),
    "waitress in a patched app": (WAITRESS, PATCH, True),
    "mod_wsgi": (MOD_WSGI, {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}", "ROOT": str(ROOT)}, True),
    "uWSGI without gevent": (f"{UWSGI} --threads 4", {}, True),
    "uWSGI that patches too late": (f"{UWSGI} --gevent 100 --gevent-monkey-patch", {}, False),
}
FINITE = [name for name in WORKING | REJECTED if name not in ("gevent with --preload", "uWSGI that patches too late")]
# Other tests of the gate run these servers, or another one with which kafkasse decides in the same way.
LONG = {
    *("our worker", "gunicorn's gevent worker", "gevent.pywsgi in a patched app"),
    *("sync", "gthread", "flask run", "waitress in a patched app"),
}


LOGIN = """
import os
from flask import Flask
from kafkasse import Config, MemoryLog, Visitor, blueprint, end_streams

log = MemoryLog()
log.create("t")
guards = {"session": lambda request: Visitor(name=request.headers["X-User"])}
app = Flask(__name__)
app.register_blueprint(blueprint(Config(allowed_topics=["t"], guards=guards, access=["session"]), log))
app.add_url_rule("/logout", view_func=lambda: str(end_streams("ada")))


@app.after_request
def name_worker(response):
    response.headers["X-Worker"] = str(os.getpid())
    return response
"""


TOKENS = """
import os
from flask import Flask
from kafkasse import Config, MemoryLog, blueprint
from kafkasse.access import keys
from tests.support.issuer import SETTINGS

keys.REFRESH_S = keys.COOLDOWN_S = 0
log = MemoryLog()
log.create("t")
guards = {"customers": {"jwt": {**SETTINGS, "jwks_url": os.environ["JWKS_URL"]}}}
app = Flask(__name__)
app.register_blueprint(blueprint(Config(allowed_topics=["t"], guards=guards, access=["customers"]), log))
"""


def names(commands: Iterable[str]) -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.long if name in LONG or name.startswith(("uWSGI", "mod_wsgi")) else ())
        for name in commands
    ]


def skip_if_missing(name: str) -> None:
    if name == "mod_wsgi" and not MOD_WSGI_MODULE.exists():
        pytest.skip(f"{MOD_WSGI_MODULE.name} is not installed: apt-get install apache2 libapache2-mod-wsgi-py3")


@pytest.fixture
def start(processes: None, tmp_path: Path) -> Iterator[Callable[..., AnyServer]]:
    with ExitStack() as servers:

        def start(command: str, **options: object) -> AnyServer:
            server = AnyServer(command, tmp_path / "log", **options)  # type: ignore[arg-type]
            servers.callback(server.stop)
            return server

        yield start


@pytest.mark.parametrize("name", names(WORKING))
def test_streams_and_pages_work(start, name):
    """Many clients receive a record while pages are served, also if requests wait for a lock of the app."""
    command, variables = WORKING[name]
    server = start(command, **variables)
    with ExitStack() as clients:
        streams = [clients.enter_context(Client(server.port, "/streams/t")).ready() for _ in range(8)]
        pages = [gevent.spawn(fetch, server.port, "/") for _ in range(4)]
        assert [200] * 4 == [page.get(timeout=TIMEOUT_S).status for page in pages]

        assert 200 == fetch(server.port, "/records", "POST").status

        assert [1] * 8 == [len(stream.events(1)) for stream in streams]
    assert "cannot serve streams" not in server.log


def test_flask_run_streams_with_the_module_of_the_guide(start, tmp_path):
    """The module of docs/flask.md, of which the page says that --debug works, too."""
    code = example("docs/flask.md", "from shop import").replace("from shop import", "from tests.support.shop import")
    (tmp_path / "dev.py").write_text(code)
    server = start(f"{BIN}/flask --app dev --debug run --no-reload --port {{port}}")

    with Client(server.port, "/streams/t").ready() as stream:
        assert 200 == stream.status


def test_a_logout_ends_the_streams_of_all_workers(start, tmp_path):
    """With kafkasse's worker, but without its gunicorn settings. gunicorn removes its private directory at the end."""
    (tmp_path / "login.py").write_text(LOGIN)
    runtime = tmp_path / "run"
    with ExitStack() as clients:
        server = start(f"{GUNICORN} {WORKER} --workers 2 login:app", KAFKASSE_RUNTIME_DIR=str(runtime))
        streams: list[Client] = []
        while len({stream.headers["x-worker"] for stream in streams}) < 2:
            streams.append(clients.enter_context(Client(server.port, "/t", X_User="ada")).ready())

        assert str(len(streams)) == fetch(server.port, "/logout").body.decode()

        for stream in streams:
            stream.rest()
    server.process.terminate()
    assert 0 == server.process.wait(TIMEOUT_S)
    assert [] == list(runtime.iterdir())


def test_a_killed_worker_is_replaced(start, tmp_path):
    """Without kafkasse's gunicorn settings, gunicorn creates the queue of its master's signals before setup() patches it."""
    (tmp_path / "login.py").write_text(LOGIN)
    server = start(f"{GUNICORN} {WORKER} login:app")
    server.expect("was sent SIGKILL")
    killed = int(fetch(server.port, "/logout").headers["x-worker"])

    os.kill(killed, signal.SIGKILL)

    assert str(killed) != fetch(server.port, "/logout").headers["x-worker"]
    assert "MonkeyPatchWarning" not in server.log


def test_a_settings_file_can_set_the_class_of_the_worker(start, tmp_path):
    """gunicorn accepts a class in place of its name."""
    file = tmp_path / "settings.py"
    file.write_text("from kafkasse.server.worker import Worker as worker_class\n")
    server = start(f"{GUNICORN} -c {file} {SHOP}")

    with Client(server.port, "/streams/t").ready() as stream:
        assert 200 == stream.status


@pytest.mark.parametrize("name", names(REJECTED))
def test_a_server_that_cannot_serve_streams_names_the_command_to_use(start, name):
    """Requests for streams get status 500 and do not occupy the server. Pages work."""
    skip_if_missing(name)
    command, variables, knows_at_start = REJECTED[name]
    server = start(command, **variables)
    assert 200 == fetch(server.port, "/", Connection="close").status
    assert knows_at_start == (ADVICE in server.log)

    answers = [fetch(server.port, "/streams/t", Connection="close") for _ in range(6)]

    assert {(500, "ConfigurationError")} == {(answer.status, answer.json["name"]) for answer in answers}
    assert 200 == fetch(server.port, "/", Connection="close").status
    assert ADVICE in server.log
    assert ("It can serve finite reads: chunks, and long polls" in server.log) == (name in FINITE)


@pytest.mark.parametrize("name", names(FINITE))
def test_finite_reads_work_under_every_server(start, name):
    """Chunks and long polls, of several clients at the same time, also where each request has a thread or a process."""
    skip_if_missing(name)
    command, variables, *_ = (WORKING | REJECTED)[name]
    server = start(command, **variables)
    offset = fetch(server.port, "/streams/t?offset=now").headers["stream-next-offset"]
    assert 200 == fetch(server.port, "/records", "POST").status

    urls = ["/streams/t?offset=-1", f"/streams/t?offset={offset}&live=long-poll"] * 4
    answers = [request.get(timeout=TIMEOUT_S) for request in [gevent.spawn(fetch, server.port, url) for url in urls]]

    assert [(200, 1)] * 8 == [(answer.status, len(answer.json)) for answer in answers]
    assert 200 == fetch(server.port, "/").status


@pytest.mark.parametrize("server", [THREADS, pytest.param(WAITRESS_THREADS, marks=pytest.mark.long)])
def test_threads_share_the_connections_to_kafka(start, broker, cluster, fresh_name, server):
    """Clients in many threads read different topics from different offsets, while records are written. None is lost.

    Kafka stops answering, first before all requests and then among them, and continues after requests have failed.
    """
    topics = cluster.create_all([f"{fresh_name}-{n}" for n in range(3)], partitions=2)
    per_partition = 150

    def write(count: int) -> None:
        for topic in topics:
            for partition in range(2):
                cluster.send(topic, *[b"{}"] * count, partition=partition)

    def read(path: str, names: list[str]) -> dict[tuple[str, int], list[int]]:
        received: dict[tuple[str, int], list[int]] = {(name, partition): [] for name in names for partition in range(2)}
        offset = "-1"
        while sum(map(len, received.values())) < per_partition * len(received):
            response = fetch(port, f"{path}?offset={offset}&live=long-poll")
            if response.status == 503:
                assert "KafkaUnavailableError" == response.json["name"]
                refused.append(response.status)
                continue
            assert response.status in (200, 204), response.body
            for place in (message["_kafka"] for message in (response.json if response.status == 200 else [])):
                received[place["topic"], place["partition"]].append(place["offset"])
            offset = response.headers["stream-next-offset"]
        return received

    write(50)
    refused: list[int] = []
    variables = {"KAFKASSE_ALLOWED_TOPICS": "*", "KAFKASSE_PUBLIC": "true", "KAFKASSE_KAFKA_TIMEOUT_S": "1"}
    port = start(server, KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, **variables).port
    selections = [[topics[n % 3], *topics[n % 3 + 1 : n % 2 + 2]] for n in range(THREAD_COUNT)]
    readers = [gevent.spawn(read, "/" + ",".join(names), names) for names in selections]
    for number in range(10):
        write((per_partition - 50) // 10)
        if number in (0, 5):
            refused.clear()
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: refused)
            finally:
                os.kill(broker.pid, signal.SIGCONT)

    for reader, names in zip(readers, selections, strict=True):
        expected = {(name, partition): [*range(per_partition)] for name in names for partition in range(2)}
        assert expected == reader.get(timeout=TIMEOUT_S)


def test_an_app_that_patches_itself_under_gthread_names_the_command_to_use(start):
    """gunicorn's gthread worker hangs in such an app, so only the log can say so."""
    server = start(f"{GUNICORN} -k gthread --threads 4 --graceful-timeout 1 {SHOP}", **PATCH)

    wait_until(lambda: f"does not respond after monkey.patch_all(). {ADVICE}" in server.log)


# Limits.


def test_a_low_limit_of_open_files_limits_the_streams(start):
    """The worker raises the soft limit to the hard limit. Above that, streams get 503, and pages still work."""
    server = start(f"{GUNICORN} {WORKER} {SHOP}", limits=(64, 300))
    with ExitStack() as clients:
        for _ in range(150):
            clients.enter_context(Client(server.port, "/streams/t")).ready()

        refused = [clients.enter_context(Client(server.port, "/streams/t")) for _ in range(200)]

        assert {503} == {client.status for client in refused}
        assert 200 == fetch(server.port, "/").status
    assert "Too many open files" not in server.log  # refused clients that keep their connections occupy no descriptors
    assert (
        "The server can have 150 open streams instead of max_streams=8000, because the limit of open files (ulimit -n) is"
        " 300. Raise it to 8200 or more." in server.log
    )


def test_gunicorns_worker_connections_limit_the_streams(start):
    """Each stream takes one connection of gunicorn's gevent worker. Without the limit, the worker could serve no pages."""
    server = start(f"{GUNICORN} -k gevent --worker-connections 20 {SHOP}")
    with ExitStack() as clients:
        for _ in range(10):
            clients.enter_context(Client(server.port, "/streams/t")).ready()

        assert 503 == fetch(server.port, "/streams/t", Connection="close").status
        assert 200 == fetch(server.port, "/", Connection="close").status
    assert "because gunicorn's worker_connections is 20" in server.log


class Keys:
    """A key set that counts how often it is fetched."""

    fetches = 0

    def __iter__(self) -> Iterator[bytes]:
        self.fetches += 1
        yield key_set("rsa-1")


def test_a_server_with_threads_fetches_the_keys_of_tokens_again(start, tmp_path):
    """Without an event loop, a greenlet would never run, and each request would leave another one behind."""
    (tmp_path / "tokens.py").write_text(TOKENS)
    with served(keys := Keys()) as url:
        server = start(f"{GUNICORN} -k gthread --threads 2 tokens:app", JWKS_URL=url)
        headers = {"Authorization": f"Bearer {token()}"}

        wait_until(lambda: 200 == fetch(server.port, "/t?offset=-1", **headers).status and keys.fetches > 2)


# Stopping and upgrading.


@pytest.mark.parametrize("part", ["post_worker_init", "gevent.pywsgi"])
def test_sigterm_drains_the_streams(start, tmp_path, part):
    """With the examples in docs/wsgi-servers.md, each stream ends with a reconnection time, before the server exits."""
    code = example("docs/wsgi-servers.md", part).replace("from shop import", "from tests.support.shop import")
    file = tmp_path / "example.py"
    file.write_text(code.replace("8000", "int(__import__('sys').argv[1])"))
    if part == "post_worker_init":
        server = start(f"{GUNICORN} -k gevent -c {file} --graceful-timeout 600 {SHOP}")
    else:
        server = start(f"{sys.executable} {file} {{port}}")
    with ExitStack() as clients:
        streams = [clients.enter_context(Client(server.port, "/streams/t")).ready() for _ in range(5)]
        server.process.terminate()
        for stream in streams:
            stream.rest()

    assert [2] * 5 == [stream.body.count(b"retry: ") for stream in streams]
    assert 0 == server.process.wait(TIMEOUT_S)


def test_sigusr2_starts_a_second_master(start, tmp_path):
    """`kafkasse serve` starts gunicorn as a module. The file of settings is the example in docs/flask.md."""
    (tmp_path / "example.py").write_text(example("docs/flask.md", "keepalive = 75"))
    server = start(f"{sys.executable} -m gunicorn --bind 127.0.0.1:{{port}} -c {tmp_path}/example.py {SHOP}")

    server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: server.log.count("Booting worker") == 2)
    server.process.terminate()
    server.process.wait()

    assert 200 == fetch(server.port, "/").status
