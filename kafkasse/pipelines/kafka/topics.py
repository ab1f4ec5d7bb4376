"""Read and write topics with Spark's Kafka connector. Queries contain no Kafka or checkpoint code.

The Kafka client is the Java client that the connector loads into the JVM.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines.kafka import tables
from kafkasse.pipelines.kafka.skipped_records import Skipped
from kafkasse.pipelines.pipeline import Mode, Pipeline, Source
from kafkasse.pipelines.schema import default
from kafkasse.pipelines.spark import private_spark
from kafkasse.pipelines.supervisor import DependencyUnavailable

# The interval of micro-batches if a source has a rate limit. Without a limit, each batch starts when the last one has ended.
MICRO_BATCH_S = 1.0
CONNECT_TIMEOUT_S = 5.0
READ_COMMITTED = {"isolation.level": "read_committed"}
NOTHING = Skipped()


def check_reachable(bootstrap_servers: str) -> None:
    """Connect to one of the servers. Spark itself would need a minute to notice that none can be reached.

    Raises:
        CommandError: an address is invalid.
        DependencyUnavailable: no server accepts a connection.
    """
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            return
        except (ValueError, OverflowError):
            raise CommandError(f"bootstrap servers are written HOST:PORT,HOST:PORT, not {bootstrap_servers}") from None
        except OSError:
            continue
    raise DependencyUnavailable(
        f"no Kafka broker accepts connections at {bootstrap_servers}; waiting (--bootstrap-servers changes the address)"
    )


def client_settings(spark: SparkSession, properties: str, bootstrap_servers: str) -> dict[str, str]:
    """Return the settings of the Kafka clients.

    Args:
        spark: its JVM parses the properties.
        properties: the content of a Java properties file, as Kafka's own tools accept it.
        bootstrap_servers: `host:port,host:port`. Overrides the properties.
    """
    jvm = private_spark.java(spark)
    parsed = jvm.java.util.Properties()
    parsed.load(jvm.java.io.StringReader(properties))
    return {name: parsed.getProperty(name) for name in parsed.stringPropertyNames()} | {
        "bootstrap.servers": bootstrap_servers
    }


def read_all(
    spark: SparkSession, kafka: dict[str, str], pipeline: Pipeline, skipped: Skipped = NOTHING
) -> dict[str, DataFrame]:
    """Read all sources of the pipeline. Returns new rows of each source by its name."""
    sources = pipeline.sources
    interval_s = _interval_s(sources.values())
    return {name: read(spark, kafka, source, skipped, interval_s) for name, source in sources.items()}


def read(
    spark: SparkSession,
    kafka: dict[str, str],
    source: Source,
    skipped: Skipped = NOTHING,
    interval_s: float = MICRO_BATCH_S,
) -> DataFrame:
    """Read the topic from the source's start, or from the checkpoint, without skipped records and aborted transactions.

    Args:
        interval_s: the interval between micro-batches, for a source with a rate limit.
    """
    if source.table:
        return tables.latest(read_now(spark, kafka, source.topic))
    options = _reader(kafka, source.topic) | _start(source) | _rate_limit(source, interval_s)
    return without_skipped(spark.readStream.format("kafka").options(**options).load(), source.topic, skipped)


def without_skipped(rows: DataFrame, topic: str, skipped: Skipped) -> DataFrame:
    """Return the records of a topic that are not skipped."""
    for partition, offsets in skipped.offsets(topic).items():
        rows = rows.where((F.col("partition") != partition) | ~F.col("offset").isin(offsets))
    return rows


def read_now(spark: SparkSession, kafka: dict[str, str], topic: str) -> DataFrame:
    """Return the records that the topic contains now, as a batch."""
    return spark.read.format("kafka").options(**_reader(kafka, topic)).load()


def _reader(kafka: dict[str, str], topic: str) -> dict[str, str]:
    return connector(READ_COMMITTED | kafka) | {"includeHeaders": "true", "subscribe": topic}


def _start(source: Source) -> dict[str, str]:
    time_ms = source.start_ms()
    if time_ms is not None:
        # A partition without newer records starts with the next record.
        return {"startingTimestamp": str(time_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if isinstance(source.start, Mapping):
        offsets = {str(partition): offset for partition, offset in source.start.items()}
        return {"startingOffsets": json.dumps({source.topic: offsets})}
    return {"startingOffsets": str(source.start)}


def _rate_limit(source: Source, interval_s: float) -> dict[str, str]:
    if source.max_records_per_s is None:
        return {}
    return {"maxOffsetsPerTrigger": str(max(1, int(source.max_records_per_s * interval_s)))}


def _interval_s(sources: Iterable[Source]) -> float:
    """Return the interval between micro-batches: long enough for one record of each source with a rate limit."""
    rates = [source.max_records_per_s for source in sources if source.max_records_per_s is not None]
    return max([MICRO_BATCH_S, *(1 / rate for rate in rates)]) if rates else 0


def write(
    rows: DataFrame, kafka: Mapping[str, str], pipeline: Pipeline, checkpoint: str, mode: Mode | None = None
) -> StreamingQuery:
    """Start the query that writes each row (`topic`, `key`, `value`, `headers`) as soon as it is computed.

    Delivery is at least once: a query that resumes from its checkpoint reads the records after the last commit again and
    writes their results again, except those that sink_versions.py drops. So each value must be a complete result: an
    incremental change would be applied twice.
    """
    writer = rows.writeStream.format("kafka").options(**connector(kafka)).option("checkpointLocation", checkpoint)
    return writer.outputMode(pipeline.output_mode).trigger(**_trigger(pipeline, mode or pipeline.mode)).start()


def commit_interval_s(pipeline: Pipeline) -> int:
    """Return the interval between the commits of a pipeline in real-time mode."""
    return pipeline.commit_interval_s or int(default("pipeline", "commit_interval_s"))


def _trigger(pipeline: Pipeline, mode: Mode) -> dict[str, Any]:  # PySpark's type annotations lack the argument realTime
    match mode:
        case "realtime":
            return {"realTime": f"{commit_interval_s(pipeline)} seconds"}
        case "microbatch":
            return {"processingTime": f"{_interval_s(pipeline.sources.values()) * 1000:.0f} milliseconds"}
        case "once":
            return {"availableNow": True}


def connector(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's connector for settings of the Kafka clients."""
    return {f"kafka.{name}": value for name, value in kafka.items()}
