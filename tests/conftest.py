"""What all tests share. gevent patches first, as it does in a server: before anything imports sockets, ssl or kafka."""

from gevent import monkey

monkey.patch_all()

import secrets  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from contextlib import closing  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402

from kafkasse.broker import EmbeddedBroker  # noqa: E402
from tests.support.kafka import Cluster  # noqa: E402
from tests.support.report import Report  # noqa: E402

hypothesis.settings.register_profile("kafkasse", deadline=None)  # no test judges by the clock
hypothesis.settings.load_profile("kafkasse")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the controller
        config.pluginmanager.register(Report(config))


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """A real Kafka, one for the whole run. Tests keep apart by topics with fresh names."""
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    """Writes to the broker."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def fresh_name() -> str:
    """A name that no other test uses."""
    return f"t-{secrets.token_hex(6)}"
