"""Explain why a query ended: whether another attempt may succeed or, if not, what the user can do."""

from __future__ import annotations

import builtins
import re

from kafkasse.errors import CommandError
from kafkasse.pipelines.supervisor import Crashed, DependencyUnavailable, Interrupted

MAX_REASON_CHARACTERS, MAX_MESSAGE_CHARACTERS = 300, 500
TOO_FEW_SLOTS = re.compile(r"CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT.* needs (\d+) ")
CHANGED_STATE = (
    "SCHEMA_NOT_COMPATIBLE",
    "COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
    "STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
)
KAFKA_ERRORS, KAFKA_CONSUMER = "org.apache.kafka.common.errors.", "org.apache.kafka.clients.consumer."
# Other classes than Kafka's have some of these names too. For example, Spark has a TimeoutException for a lost executor.
NO_KAFKA = ("TimeoutException", "DisconnectException", "BrokerNotAvailableException", "NetworkException")
REGISTRY = re.compile(  # the messages of SchemaRegistry.java
    r"^Caused by: java\.lang\.IllegalStateException: (the schema registry (rejects|is not available).*)", re.M
)
# The condition of an exception whose SQLSTATE has the class 22 (data exceptions), or is that of Spark's raise_error().
DATA_ERROR = re.compile(
    r"\[(?!KAFKA_)([A-Z][\w.]+)\](?:(?!\n\tat |\nCaused by: ).)*? SQLSTATE: (?:22|P0001)", re.DOTALL
)
PY4J = "An error occurred while calling "  # the first line of Py4JJavaError; the next one is ": " and Java's exception
PYTHON_EXCEPTION, TRACEBACK = "[PYTHON_EXCEPTION]", "Traceback (most recent call last):"
NO_DATA_ERRORS = (
    KAFKA_ERRORS,
    "java.lang.OutOfMemoryError",
    "SparkOutOfMemoryError",
    "ExecutorLostFailure",
    "Python worker exited",
)
NO_DATA_ERRORS_OF_PYTHON = (OSError, MemoryError, ImportError, EOFError, SystemExit, KeyboardInterrupt)
PERMANENT = {
    "OffsetOutOfRangeException": (
        "Kafka deleted records before the pipeline read them; use a new --checkpoint to start with the oldest record that "
        "is left"
    ),
    "UnknownTopicOrPartitionException": "the source topic or the sink topic was deleted; create it and start again",
    "TopicAuthorizationException": "Kafka does not allow this user to read the source or to write the sink; add an ACL",
    "SaslAuthenticationException": "Kafka rejects the user name or the password of --kafka-config",
    "SslAuthenticationException": "the TLS connection to Kafka failed; check the ssl settings of --kafka-config",
    "RecordTooLargeException": (
        "a result is larger than the sink topic accepts; raise max.message.bytes of the topic and max.request.size in "
        "--kafka-config, or make the results smaller"
    ),
}


class ChangedState(CommandError):
    """The state in the checkpoint does not fit the query."""


def explain(reason: str, *, committed: bool) -> CommandError | Interrupted:
    """Return the error for a query that Spark ended.

    Args:
        reason: the text of Spark's exception, with the exceptions that caused it.
        committed: whether the query committed a batch before.
    """
    if any(name in reason for name in CHANGED_STATE):
        return ChangedState(
            "the state in the checkpoint does not match the query; undo the change, or run the pipeline with --rebuild to "
            "recompute all results"
        )
    for name, sentence in PERMANENT.items():
        if KAFKA_ERRORS + name in reason or KAFKA_CONSUMER + name in reason:
            return CommandError(sentence)
    if registry := REGISTRY.search(reason):
        return CommandError(registry[1]) if registry[2] == "rejects" else DependencyUnavailable(registry[1])
    if _is_without_kafka(reason):
        return DependencyUnavailable("Kafka does not respond")
    return Crashed(f"Spark ended the query: {first_line(reason)}", committed=committed, data_error=data_error(reason))


def unexpected(error: Exception) -> Interrupted:
    """Return the error for an exception of Spark or of a Kafka client outside of a query."""
    reason = first_line_of(error)
    return (
        DependencyUnavailable("Kafka does not respond")
        if _is_without_kafka(reason)
        else Crashed(f"Spark failed: {reason}")
    )


def _is_without_kafka(reason: str) -> bool:
    return any(KAFKA_ERRORS + name in reason for name in NO_KAFKA)


def data_error(reason: str) -> str:
    """Return the kind of error that a query has raised for a record, such as `DIVIDE_BY_ZERO` or `ValueError`.

    Args:
        reason: the text of Spark's exception, with the exceptions that caused it.

    Returns:
        The kind, or "" if the error may have another cause than the record: for example, a lack of memory, a lost executor,
        Kafka, or a service or a file that a Python function uses.
    """
    if any(name in reason for name in NO_DATA_ERRORS):
        return ""
    if PYTHON_EXCEPTION in reason:
        name = _python_error(reason).partition(":")[0]
        is_other = name.endswith("MemoryError") or issubclass(_builtin_error(name), NO_DATA_ERRORS_OF_PYTHON)
        return "" if is_other else name
    error = DATA_ERROR.search(reason)
    return error[1] if error else ""


def _builtin_error(name: str) -> type[BaseException]:
    """Return Python's own exception of this name without its module: for `requests.ConnectionError`, ConnectionError."""
    type_ = getattr(builtins, name.rpartition(".")[2], None)
    return type_ if isinstance(type_, type) and issubclass(type_, BaseException) else Exception


def _python_error(reason: str) -> str:
    """Return the exception at the end of Python's traceback, such as `ValueError: not a number`."""
    lines = reason.rpartition(TRACEBACK)[2].splitlines()[1:]
    return next((line for line in lines if line and not line[0].isspace()), "an exception of Python")


def missing_topic(topic: str, *, is_sink: bool) -> CommandError:
    """Return the error for a topic that does not exist. A sink should be compacted: else Kafka deletes the results."""
    command = f"kafkasse topics create {topic}{' --config cleanup.policy=compact' if is_sink else ''}"
    return CommandError(f"the topic {topic} does not exist; create it first, for example with: {command}")


def slots_needed(reason: str) -> int:
    """Return how many slots a query needs that Spark rejected because it has too few, or 0 if this is not the reason."""
    match = TOO_FEW_SLOTS.search(reason)
    return int(match[1]) if match else 0


def too_few_slots(needed: int, slots: int, *, local: bool) -> CommandError | DependencyUnavailable:
    """Return the error for a pipeline that needs more slots than Spark has.

    Args:
        needed: how many slots the pipeline needs at the same time.
        slots: how many slots Spark has.
        local: whether Spark runs on this machine alone. Then no slots can be added while the pipeline waits.
    """
    problem = f"Spark has too few slots: {slots}, but the pipeline needs {needed}"
    if needed > 1:
        problem += " (one for each source partition, one for each task of a stateful stage, and one for dead letters)"
    if local:
        return CommandError(f"{problem}; use --master local[{needed}] or more")
    return DependencyUnavailable(
        f"{problem}; waiting for more slots: add workers, or raise the limit for the executors of the pipeline, such as "
        "--conf spark.cores.max=N or --conf spark.executor.instances=N"
    )


def first_line_of(error: Exception) -> str:
    """Return the first line of an exception of Spark, whose text is in the JVM and may be lost with it."""
    try:
        return first_line(str(error).partition(PY4J)[2].partition("\n: ")[2] or str(error))
    except Exception:  # noqa: BLE001 - any error of the connection to the JVM
        return "its JVM has ended"


def message(error: BaseException) -> str:
    """Return the message of Spark in one line, without the plan that follows it."""
    text = str(error).split("\n\n")[0].split(";\n")[0]
    match = re.search(r"\[[A-Z_.]+\] .*", text, re.DOTALL)
    return " ".join((match[0] if match else text).split())[:MAX_MESSAGE_CHARACTERS]


def first_line(reason: str) -> str:
    """Return the exception of Python, or the innermost cause, which is closest to the problem, or else the first line."""
    if PYTHON_EXCEPTION in reason and TRACEBACK in reason:
        return _python_error(reason)[:MAX_REASON_CHARACTERS]
    causes = [line.removeprefix("Caused by: ") for line in reason.splitlines() if line.startswith("Caused by: ")]
    return (causes or reason.splitlines() or ["no reason given"])[-1 if causes else 0][:MAX_REASON_CHARACTERS]
