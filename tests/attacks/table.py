"""Generates docs/attacks.md from the tables that the tests use: `python -m tests.attacks.table`."""

# ruff: noqa: E501 - each table row is one line
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.attacks.kit import Case
from tests.attacks.records import FORMATS, OUTCOMES, RECORDS, Hostile
from tests.attacks.requests import TABLES
from tests.attacks.tokens import TOKENS

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"
MAX_SENT_CHARS = 60
SIZE_SHOWN_ABOVE = 1_000
HARMLESS = b'{"a":1}'
SMUGGLED_LINE = b"GET /hidden HTTP/1.1"
HEAD = """\
# Attacks

This reference is for people who review the security of kafkasse ([security.md](security.md)). It lists what hostile clients and
producers may send, and the answer that each must get. `attacks/test_requests.py::test_hostile_requests` and
`attacks/test_records.py::test_hostile_records` run every row against a real gunicorn and a real Kafka. Afterwards, no connection,
stream or descriptor may be left, and the log may contain no traceback. `python -m tests.attacks.table` writes this page.
"""
ANSWERS = {
    "200 stream": "the request is valid and the stream starts",
    "204": "the answer to OPTIONS, the same for all topics, without CORS headers for other origins",
    "400 BadRequestError": "invalid HTTP or ambiguous framing; the connection is closed",
    "400 InvalidAssignmentError": "the event ID is not a valid position",
    "400 InvalidParameterError": "invalid query parameter or list of topics",
    "400 WebsocketMismatch": "kafkasse has no WebSockets",
    "401 UnauthorizedError": "the token is missing or not valid",
    "404 TopicNotAvailableError": "the topic does not exist or is not allowed",
    "404 NotFoundError": "no route has this path",
    "405 MethodNotAllowedError": "the URL does not support the method; streams support GET, HEAD and OPTIONS",
    "406 NotAcceptableError": "the client accepts none of the wire formats",
    "414 RequestTooLargeError": "the request line is too long",
    "431 HeaderTooLargeError": "the header or the event ID is too large",
    "100": "the client sent `Expect: 100-continue`, so the server requests the body",
    "404": "the answer to HEAD has no body",
    "closed": "no answer, because the request is incomplete or not HTTP",
}
NOTES = {
    "Last-Event-ID": "The `Last-Event-ID` header of `GET /attacked`, unless more is shown.",
    "Header fields": "Added to `GET /attacked`. In an answer, *for* is followed by the origin whose pages may read the stream.",
    "Request smuggling": "Unless shown, the request is `GET /attacked` or `GET /unknown`. `GET /hidden` follows.",
}
ELSEWHERE = [
    ("A header sent byte by byte", "closed after gunicorn's `keepalive` (5 s)", "attacks/test_exhaustion.py::test_closes_clients_that_send_byte_by_byte"),
    ("A body sent byte by byte", "closed after gunicorn's `keepalive` (5 s)", "attacks/test_exhaustion.py::test_closes_clients_that_send_byte_by_byte"),
    ("Hundreds of idle connections", "closed; other clients are served", "attacks/test_exhaustion.py::test_closes_idle_connections"),
    ("An endless header", "431 after 128 KiB", "attacks/test_exhaustion.py::test_rejects_an_endless_header"),
    ("An endless body", "closed after 64 KiB", "attacks/test_exhaustion.py::test_closes_after_an_endless_body"),
    ("Thousands of pipelined requests on one connection", "they take turns with other clients", "attacks/test_exhaustion.py::test_pipelined_requests_take_turns"),
    ("A client that does not read its responses", "closed after 120 s", "attacks/test_exhaustion.py::test_closes_clients_that_do_not_read_responses"),
    ("A client that does not read its stream", "closed after `write_timeout_s`", "server/test_ends.py::test_closes_a_client_that_does_not_read"),
    ("More bytes after a stream request", "ignored; the end is noticed at the next heartbeats", "attacks/test_exhaustion.py::test_notices_that_a_talking_client_left"),
    ("More streams than `max_streams`", "503 ServerFullError, Retry-After", "server/test_caps.py::test_a_full_server_rejects_clients_and_serves_those_inside"),
    ("More streams than `max_streams_per_client`", "429 TooManyStreamsError, Retry-After", "server/test_caps.py::test_a_full_server_rejects_clients_and_serves_those_inside"),
    ("Forged addresses in X-Forwarded-For", "counted for the real address", "web/test_limits.py::test_spellings_of_one_address_are_one_client"),
    ("X-Forwarded-For without `trusted_proxies`", "ignored", "web/test_limits.py::test_ignores_x_forwarded_for_without_trusted_proxies"),
    ("Dozens of clients that disconnect", "nothing is left behind", "server/test_ends.py::test_clients_that_left_leave_no_descriptors"),
    ("A costly event ID of 64 KiB", "each entry is checked once", "position/test_position.py::test_64_kib_of_hostile_text"),
    ("A forbidden topic, and a missing one", "identical responses", "server/test_rejections.py::test_a_forbidden_topic_looks_like_a_missing_one"),
    ("Random text as an event ID", "a position, or 400", "position/test_position.py::test_any_text_is_a_position_or_rejected"),
    ("Hostile values in Avro, Protobuf and JSON Schema", "skipped; the next record arrives, and no turn takes more than 50 ms", "attacks/test_schemas.py::test_hostile_values"),
    ("Random bytes as a record", "at most one event; two parsers agree", "attacks/test_fuzz.py::test_random_bytes"),
    ("The hostile records, read by Chromium", "the events of the table; no script runs", "attacks/test_records.py::test_chromium_dispatches_the_same_events"),
    ("A response loaded as a script, and markup in a URL", "no script runs", "attacks/test_records.py::test_responses_run_no_script"),
    ("Markup in the name of a country", "shown as text on the page", "web/test_page.py::TestBoard::test_shows_markup_as_text"),
    ("A record that imitates an event in JSON lines", "distinguishable in every format", "attacks/test_records.py::test_lines_contain_only_our_lines"),
    ("Damaged or forged record batches", "records, or an error", "attacks/test_fuzz.py::test_random_bytes"),
    ("Random bytes as a broker's response", "rejected", "kafka/test_fetch_protocol.py::test_survives_random_bytes"),
    ("A random configuration file", "an error of one sentence", "attacks/test_fuzz.py::test_random_bytes"),
    ("A ticket that was changed, used, or issued for another stream", "401", "attacks/test_guards.py::test_tickets_that_were_changed"),
    ("One ticket in 20 requests at once, on two workers", "one stream; 19 times 401", "access/test_server.py::test_a_ticket_works_once_in_all_workers_together"),
    ("A cookie that a page of another origin sends", "403", "access/test_requests.py::test_only_pages_of_allowed_origins_may_use_the_cookie"),
    ("A token in a URL", "400; masked in the access log", "access/test_server.py::test_the_access_log_contains_no_tokens"),
    ("Topics that exist or not, without a token", "identical responses", "attacks/test_guards.py::test_unidentified_visitors_learn_nothing_about_topics"),
    ("Tokens with unknown key IDs", "the keys are fetched at most every 30 s", "access/test_keys.py::test_an_unknown_key_causes_one_fetch_per_cooldown"),
    ("A key set that is hostile, endless or slow", "rejected; other clients are not delayed", "access/test_keys.py::test_a_slow_response_does_not_block_the_event_loop"),
    ("A client that uses its stream after its token expired", "the stream ends at that time", "access/test_server.py::test_no_record_is_sent_after_the_token_expires"),
    ("A password in an invalid configuration", "never shown", "config/test_secrets.py::test_no_file_makes_an_error_quote_a_secret"),
]  # fmt: skip
# An attack, its full size, its outcome in addition to the limits on turns and memory, and its test.
LOADS = [
    ("One batch of tiny records; one live client", "900,000 records of 7 bytes, zstd", "the client receives all records", "attacks/test_stalls.py::test_one_live_client_of_a_batch_of_tiny_records"),
    ("The same batch; slow clients that start at the first record", "10 clients, 4 KiB per 50 ms", "a fast client beside them receives all records", "attacks/test_stalls.py::test_ten_slow_clients_of_a_batch_of_tiny_records"),
    ("A batch in each of many partitions; one live client", "400 partitions, up to 4 MB in each after decompression", "the client receives all records", "attacks/test_stalls.py::test_a_live_client_receives_a_batch_from_each_of_many_partitions"),
    ("The same; clients that catch up but do not read", "60 clients", "the memory stays below the bound", "attacks/test_stalls.py::test_clients_that_catch_up_on_many_partitions"),
    ("Clients that resume at the oldest record of a full ring, reading or not", "200 clients, 8 MB", "each client that reads receives all records", "attacks/test_stalls.py::test_many_clients_join_the_ring_at_once"),
    ("A snapshot that is larger than `max_snapshot_bytes`", "200 MB, 8 clients", "an error that names the setting", "attacks/test_stalls.py::test_a_snapshot_of_a_large_table"),
    ("Many clients of one snapshot", "100,000 keys, 20 clients", "all receive it; records of another topic arrive meanwhile", "attacks/test_stalls.py::test_many_clients_of_a_snapshot"),
    ("Small records on many partitions; event IDs with timestamps", "20,000 records, 1,000 partitions", "the client receives all records", "attacks/test_stalls.py::test_small_records_on_many_partitions"),
    ("Many full rings", "50 topics, 4 MB each", "each client receives all records", "attacks/test_stalls.py::test_many_rings"),
    ("Full rings, a snapshot that becomes too large, and clients that catch up but do not read, all at once", "12 topics of 9 MB, 80 MB, 60 clients; the small size is the same", "the memory stays below the sum of the bounds; each live client receives all records", "attacks/test_stalls.py::test_all_limits_at_once"),
    ("Records that are not JSON", "300,000 records", "less than 10 kB of log; the next valid record arrives", "attacks/test_stalls.py::test_many_records_that_are_not_json"),
    ("A record that is small in Kafka and huge when decompressed", "64 MB, gzip and zstd; the small size is the same", "a gap", "attacks/test_stalls.py::test_a_decompression_bomb"),
    ("Readers from the start that take 4 KB per 15 s", "150 clients", "a client with another address catches up", "attacks/test_isolation.py::test_slow_readers_do_not_starve_catching_up"),
    ("A partition without a leader", "1 of 12", "its topic opens; the records of the other partitions arrive; other topics open", "attacks/test_isolation.py::test_a_partition_without_a_leader"),
    ("Many live topics", "50 topics, 500 records/s", "one connection for data to each broker", "attacks/test_isolation.py::test_many_topics"),
    ("One client, many combinations of topics", "200 combinations of 8 topics", "all are served; another client catches up", "attacks/test_isolation.py::test_one_client_of_many_combinations_of_topics"),
    ("Clients with event IDs of KafkaSSE", "150 clients", "they share the feed; another client catches up", "attacks/test_isolation.py::test_many_clients_with_ids_of_kafka_sse"),
    ("Clients with forged leader epochs at the end of an idle topic", "150 clients", "they share the feed", "attacks/test_isolation.py::test_many_clients_with_forged_leader_epochs"),
    ("Clients that resume with timestamps in their event IDs", "150 clients, 200 records", "they share the feed: the CPU time is that of new clients", "attacks/test_isolation.py::test_clients_that_resume_with_timestamps_share_the_feed"),
    ("Requests for random topics while each round trip to Kafka takes 200 ms", "400 at once", "404; an existing topic opens in less than half the time that 400 lookups in a row would take", "attacks/test_isolation.py::test_lookups_of_unknown_topics"),
    ("A fleet that returns when the ring is empty", "1,000 and 3,000 clients", "each receives the records that it missed; no 503", "attacks/test_isolation.py::test_a_fleet_returns_to_an_empty_ring"),
    ("Clients that connect at the same time", "6,000 clients", "all streams open, and each client receives all records", "attacks/test_isolation.py::test_many_clients_connect_at_once"),
]  # fmt: skip
LOADS_HEAD = """\
## Loads

Each of these attacks has a worker of its own. `make attacks` runs them in this size, and `make test` with fewer clients and records.
While they run, no turn of the worker's event loop may take more than 50 ms of CPU time, so every other stream continues, and the
memory must stay below the bound in [capacity.md](capacity.md#memory-of-a-worker). The requests, records and other attacks on this
page have the same limits. `make test`, which must also pass on a busy machine, allows turns of up to 250 ms.

| attack | full size | outcome | test |
| --- | --- | --- | --- |"""


TOKENS_HEAD = """\
## Tokens

A guard accepts RS256, ES256 and EdDSA with the keys of one issuer, and API keys. `attacks/test_guards.py::test_hostile_tokens` sends
each of these tokens in the `Authorization` header of `GET /t`. No token may appear in the log.

| kind | token | answer |
| --- | --- | --- |"""


def render() -> str:
    requests = sum(len(cases) for cases in TABLES.values())
    count = (
        f"{requests} requests, {len(RECORDS)} records in {len(FORMATS)} formats, {sum(map(len, TOKENS.values()))} tokens, "
        f"{len(LOADS)} loads, and {len(ELSEWHERE)} other attacks."
    )
    return "\n".join([HEAD, count, "", *_answers(), *_requests(), *_records(), *_tokens(), *_loads(), *_others()])


def _answers() -> Iterator[str]:
    yield "## Answers\n\nAn answer is a status and, for an error, its [name](wire.md#errors).\n"
    yield "| answer | meaning |\n| --- | --- |"
    yield from (f"| {answer} | {why} |" for answer, why in ANSWERS.items())
    yield ""


def _requests() -> Iterator[str]:
    for table, cases in TABLES.items():
        yield f"## {table}\n"
        yield from [NOTES[table], ""] if table in NOTES else []
        for answers in dict.fromkeys(each.answers for each in cases):
            yield f"**{', then '.join(answers)}**\n"
            yield from (f"- {_cell(each.name)}: {_sent(each)}" for each in cases if each.answers == answers)
            yield ""


def _sent(case: Case) -> str:
    """Return the parts of a request that differ from a normal one, shortened, as Markdown code."""
    if case.request.startswith(b"\r\n"):
        return _code(case.request)
    lines = [line for line in case.request.split(b"\r\n") if line not in (b"", b"Host: x")]
    if len(lines) > 1 and lines[0] in (b"GET /attacked HTTP/1.1", b"GET /unknown HTTP/1.1"):
        del lines[0]
    if len(lines) > 1 and lines[-1] == SMUGGLED_LINE:
        del lines[-1]
    if len(lines) == 1:
        lines = [lines[0].removeprefix(b"Last-Event-ID: ").removesuffix(b" HTTP/1.1")]
    return _code(*lines, size=len(case.request))


def _stored(record: Hostile) -> str:
    """Return the parts of a record that are not harmless, shortened, as Markdown code."""
    parts = [] if record.value in (None, HARMLESS) else [_code(record.value)]
    parts += [] if record.key is None else [f"key {_code(record.key)}"]
    headers = [b"%b: %b" % (name.encode(), value) for name, value in record.headers]
    return ", ".join([*parts, f"header {_code(*headers)}"] if headers else parts)


def _code(*lines: bytes, size: int | None = None) -> str:
    text = " ⏎ ".join(_printable(line) for line in lines)
    if not text:
        return "*nothing*"
    suffix = ""
    if len(text) > MAX_SENT_CHARS:
        size = size or sum(map(len, lines))
        suffix = f" *({size:,} bytes)*" if size > SIZE_SHOWN_ABOVE else ""
        text = text[: MAX_SENT_CHARS - 1] + "…"
    quote = "``" if "`" in text else "`"
    return f"{quote}{text}{quote}{suffix}".replace("|", "\\|")


def _printable(line: bytes) -> str:
    return "".join(chr(each) if 0x20 <= each < 0x7F else f"\\x{each:02x}" for each in line)


def _records() -> Iterator[str]:
    yield "## Records\n\nThe outcome of a record in each format: one event of this type, or nothing (skipped).\n"
    types = {each: name for name, each in OUTCOMES.items()}
    yield f"| type | {' | '.join(f'`{name}`' for name in FORMATS)} |\n| --- {'| --- ' * len(FORMATS)}|"
    yield from (f"| {name} | {' | '.join(outcome)} |" for name, outcome in OUTCOMES.items())
    yield "\n| a record with | sent | type |\n| --- | --- | --- |"
    yield from (f"| {_cell(each.name)} | {_stored(each)} | {types[each.outcome]} |" for each in RECORDS)
    yield ""


def _tokens() -> Iterator[str]:
    yield TOKENS_HEAD
    for where, cases in TOKENS.items():
        for answer in dict.fromkeys(each.answer for each in cases):
            names = (_cell(each.name) for each in cases if each.answer == answer)
            yield from (f"| {where} | {name} | {answer} |" for name in names)
    yield ""


def _loads() -> Iterator[str]:
    yield LOADS_HEAD
    for attack, size, outcome, test in LOADS:
        yield f"| {attack} | {size} | {outcome} | `{test}` |"
    yield ""


def _others() -> Iterator[str]:
    yield "## Exhaustion, deception and random bytes\n\n| attack | answer | test |\n| --- | --- | --- |"
    yield from (f"| {attack} | {answer} | `{test}` |" for attack, answer, test in ELSEWHERE)
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")


if __name__ == "__main__":
    PAGE.write_text(render())
