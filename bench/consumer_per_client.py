"""A baseline: the simplest possible server. A Flask app that creates one KafkaConsumer for each HTTP client.

    gunicorn -k gevent bench.consumer_per_client:app

It reads BENCH_BOOTSTRAP_SERVERS. It implements only the part of event IDs that the benchmark needs.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import os  # noqa: E402
from collections.abc import Iterator  # noqa: E402

from flask import Flask, Response, request  # noqa: E402
from kafka import KafkaConsumer, TopicPartition  # noqa: E402

app = Flask(__name__)


@app.get("/<topic>")
def stream(topic: str) -> Response:
    """Stream the topic from its end, or from the Last-Event-ID."""
    consumer = KafkaConsumer(bootstrap_servers=os.environ["BENCH_BOOTSTRAP_SERVERS"])
    partitions = [TopicPartition(topic, each) for each in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(partitions)
    consumer.seek_to_end()
    for entry in json.loads(request.headers.get("Last-Event-ID", "[]")):
        consumer.seek(TopicPartition(entry["topic"], entry["partition"]), entry["offset"])
    position = {each.partition: consumer.position(each) for each in partitions}
    return Response(events(consumer, topic, position), content_type="text/event-stream")


def events(consumer: KafkaConsumer, topic: str, position: dict[int, int]) -> Iterator[str]:
    """Yield one event for each record. Its ID contains the next offset of each partition."""
    try:
        yield ":ok\n\n"
        for record in consumer:
            position[record.partition] = record.offset + 1
            entries = [{"topic": topic, "partition": each, "offset": at} for each, at in position.items()]
            yield f"id: {json.dumps(entries)}\ndata: {record.value.decode()}\n\n"
    finally:
        consumer.close()
