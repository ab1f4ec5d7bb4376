"""Personal streams over a real broker: each client receives its own records of one topic, also after a worker was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import count

import pytest

from tests.support.client import Client, numbers
from tests.support.kafka import Cluster
from tests.support.server import KILLED, Server
from tests.support.waiting import wait_until

TOPIC = "personal-orders"


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    route = {"path": "/orders/of/{customer}", "topics": [TOPIC], "where": {"key": "{customer}"}}
    return serve(routes={"orders_of": route})


@pytest.fixture(scope="module")
def send(cluster: Cluster) -> Callable[..., None]:
    """Sends records whose keys are the given customers. Alice and bob have a partition each; carol has records in both."""
    cluster.create(TOPIC, 2)
    numbers = count()

    def send(*customers: str) -> None:
        for customer in customers:
            number = next(numbers)
            partition = {"alice": 0, "bob": 1}.get(customer, number % 2)
            cluster.send(TOPIC, b'{"n":%d}' % number, partition=partition, key=customer.encode())

    return send


def test_two_clients_resume_exactly_after_their_worker_was_killed(
    server: Server, send: Callable[..., None], connect: Callable[..., Client]
) -> None:
    """The new worker reads the topic again, and sends each client exactly the records that it has missed."""
    clients = {customer: connect(f"/orders/of/{customer}").ready() for customer in ("alice", "bob")}
    send("alice", "bob", "carol", "alice", "alice", "bob", "carol")
    before = {customer: numbers(client.events(2)) for customer, client in clients.items()}
    (worker,) = server.workers()
    server.expect(KILLED)
    os.kill(worker, signal.SIGKILL)
    for customer, client in clients.items():
        before[customer] += numbers(client.rest_until_cut())
    send("bob", "alice", "carol", "bob")
    wait_until(lambda: server.workers() not in ([], [worker]))

    resumed = {
        customer: connect(f"/orders/of/{customer}", Last_Event_ID=client.last_id)
        for customer, client in clients.items()
    }
    after = {customer: numbers(client.events(4 - len(before[customer]))) for customer, client in resumed.items()}
    send("carol", "bob", "alice")

    assert {"alice": [0, 3, 4, 8], "bob": [1, 5, 7, 10]} == {each: before[each] + after[each] for each in clients}
    assert {"alice": [13], "bob": [12]} == {each: numbers(client.events(1)) for each, client in resumed.items()}
