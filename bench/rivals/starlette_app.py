"""A rival: Starlette, with one aiokafka consumer that all clients of the process share.

    uvicorn --loop uvloop --http httptools bench.rivals.starlette_app:app

It reads BENCH_BOOTSTRAP_SERVERS and BENCH_TOPICS. Each record is encoded once. The frames of a fetch go to each client's
queue as one item, and all items of a queue are one write. A client whose queue is full is dropped.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

MAX_QUEUED = 1_000

Queue = asyncio.Queue[bytes]
clients: dict[str, set[Queue]] = defaultdict(set)


async def fan_out(consumer: AIOKafkaConsumer) -> None:
    """Give the records of each fetch to all clients of their topic."""
    while True:
        frames: dict[str, list[bytes]] = defaultdict(list)
        for partition, records in (await consumer.getmany(timeout_ms=1_000)).items():
            frames[partition.topic] += [
                b"id: %d:%d\ndata: %b\n\n" % (partition.partition, record.offset, record.value) for record in records
            ]
        for topic, encoded in frames.items():
            chunk = b"".join(encoded)
            for queue in list(clients[topic]):
                try:
                    queue.put_nowait(chunk)
                except asyncio.QueueFull:
                    clients[topic].discard(queue)


async def stream(request: Request) -> StreamingResponse:
    """Stream a topic from its end."""
    return StreamingResponse(events(request.path_params["topic"]), media_type="text/event-stream")


async def events(topic: str) -> AsyncIterator[bytes]:
    """Yield everything that is in the client's queue, until the client leaves or is dropped."""
    queue = Queue(MAX_QUEUED)
    clients[topic].add(queue)
    try:
        yield b":ok\n\n"
        while queue in clients[topic]:
            chunks = [await queue.get()]
            while not queue.empty():
                chunks.append(queue.get_nowait())
            yield b"".join(chunks)
    finally:
        clients[topic].discard(queue)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Run the consumer as long as the app."""
    topics = os.environ["BENCH_TOPICS"].split(",")
    async with AIOKafkaConsumer(*topics, bootstrap_servers=os.environ["BENCH_BOOTSTRAP_SERVERS"]) as consumer:
        await consumer.seek_to_end()
        task = asyncio.create_task(fan_out(consumer))
        yield
        task.cancel()


app = Starlette(routes=[Route("/{topic}", stream)], lifespan=lifespan)
