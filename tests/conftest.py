"""Fixtures and pytest plugins for all tests.

gevent patches first, as in a server: before any module imports sockets, ssl or kafka. The developer's shell does not
affect the tests: variables that configure kafkasse are removed, and SIGINT is not ignored.
"""

import os
import signal

from gevent import monkey

monkey.patch_all()

MACHINE = {"KAFKASSE_CACHE_DIR", "KAFKASSE_IVY_SETTINGS"}  # the cache and the registry of the jars
for name in [name for name in os.environ if name.startswith(("KAFKASSE_", "KAFKA_")) and name not in MACHINE]:
    del os.environ[name]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; child processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import gc  # noqa: E402
import hashlib  # noqa: E402
import random  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from contextlib import ExitStack, closing  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from werkzeug.wrappers import Response  # noqa: E402

from kafkasse.process.open_streams import streams  # noqa: E402
from kafkasse.tools.broker import EmbeddedBroker  # noqa: E402
from tests.support.broker_versions import SETTINGS, running_broker  # noqa: E402
from tests.support.examples import is_long, register_profiles  # noqa: E402
from tests.support.greenlets import Greenlets  # noqa: E402
from tests.support.guard import Guard  # noqa: E402
from tests.support.kafka import Cluster  # noqa: E402
from tests.support.report import LeftOut, Report  # noqa: E402
from tests.support.schedule import Schedule  # noqa: E402

gc.disable()  # until all tests are collected
register_profiles()

if not hasattr(Response, "text"):  # Werkzeug 2.0, with which `make compat` runs some tests
    Response.text = property(lambda response: response.get_data(as_text=True))


def pytest_configure(config: pytest.Config) -> None:
    schedule = Schedule(config)
    config.pluginmanager.register(Guard())
    config.pluginmanager.register(Greenlets())
    config.pluginmanager.register(schedule)
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if output is None and (missing := [path for path in config.args if not Path(path.partition("::")[0]).exists()]):
        raise pytest.UsageError(f"{missing[0]} does not exist: check TEST")  # pytest-xdist would only say: no tests ran
    config.pluginmanager.register(LeftOut(config, output) if output is not None else Report(config, schedule))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()  # otherwise, each garbage collection would visit thousands of collected tests: a quarter of the CPU time
    gc.enable()


@pytest.fixture(scope="session")
def processes() -> None:
    """Requested by fixtures that start processes. `make test-fast` leaves out the tests that use them."""


@pytest.fixture(scope="session")
def broker(processes: None) -> Iterator[EmbeddedBroker]:
    """A Kafka broker for all tests of this process. Each test uses its own topics, see fresh_name."""
    version = os.environ.get("BROKER_VERSION")  # set by `make compat-kafka`
    with running_broker(version) if version else EmbeddedBroker(settings=SETTINGS) as running:
        yield running
        if isinstance(running, EmbeddedBroker):
            running.kill()  # its data is no longer needed


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    """Creates topics on the broker and writes to them."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Clients that are closed at the end of the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def no_open_streams() -> None:
    """Each test starts like a new process, even if the last test has drained its streams or left one open."""
    streams.__init__()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """kafkasse draws the same delays and samples in each run, but not with `make test-random`."""
    if not is_long():
        random.seed(0)


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses. It is always the same, because names decide the order of topics."""
    return f"t-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"
