"""docs/attacks.md, made of the tables that the tests run: `python -m tests.attacks.table` writes it anew."""

# ruff: noqa: E501 - a row of a table is a line
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.attacks.records import FORMATS, RECORDS
from tests.attacks.requests import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"
HEAD = """\
# Attacks

What hostile clients and producers try, and the answer that each must get. Every line is run by the test that it names,
against a real gunicorn and a real Kafka, over raw sockets; this page is written by `python -m tests.attacks.table` and a
test fails where it differs. What is trusted, and what to set, stands in [security.md](security.md).

An answer is a status and, for a refusal, the `name` in its [problem](wire.md#errors); *closed* is a connection that ends
without one. After each module's attacks the server must serve as before, with no connection and no stream left, no more
descriptors open, and no traceback in its log.
"""
ELSEWHERE = [
    ("A header sent a byte at a time", "cut off after gunicorn's `keepalive`, 5 s", "attacks/test_exhaustion.py::test_a_byte_at_a_time"),
    ("A body sent a byte at a time", "the same", "attacks/test_exhaustion.py::test_a_byte_at_a_time"),
    ("Hundreds of connections that say nothing", "closed; others are served", "attacks/test_exhaustion.py::test_connections_that_say_nothing"),
    ("A header that never ends", "431 after 128 KiB", "attacks/test_exhaustion.py::test_a_header_that_never_ends"),
    ("A body that never ends", "closed after 64 KiB", "attacks/test_exhaustion.py::test_a_body_that_never_ends"),
    ("Thousands of requests on one connection", "answered in turn with everybody else's", "attacks/test_exhaustion.py::test_requests_by_the_thousand"),
    ("Answers that are asked for and not read", "closed after 120 s", "attacks/test_exhaustion.py::test_answers_that_nobody_takes"),
    ("A stream read a byte at a time", "others have all at once; memory is bounded", "attacks/test_exhaustion.py::test_a_reader_of_a_byte_at_a_time"),
    ("A stream that is not read at all", "closed after `write_timeout_s`", "server/test_ends.py::test_a_client_that_does_not_read"),
    ("More bytes behind the request of a stream", "not heard; missed with the next heartbeats", "attacks/test_exhaustion.py::test_a_client_that_talks_on"),
    ("More streams than a worker may have", "503 ServerFullError, Retry-After", "attacks/test_exhaustion.py::test_as_many_streams_as_there_may_be"),
    ("More streams than a client may have", "429 TooManyStreamsError, Retry-After", "attacks/test_exhaustion.py::test_more_streams_than_one_client_may_have"),
    ("Made-up addresses in X-Forwarded-For", "count as the client that they hide", "attacks/test_exhaustion.py::test_more_streams_than_one_client_may_have"),
    ("X-Forwarded-For without `trusted_proxies`", "is not read", "web/test_limits.py::test_without_trusted_hops_the_header_is_not_read"),
    ("Streams and refusals by the hundred", "leave nothing behind", "attacks/test_exhaustion.py::test_streams_and_refusals_by_the_hundred"),
    ("Clients that are cut off, by the dozen", "leave nothing behind", "server/test_ends.py::test_nothing_is_left_of_clients_that_went"),
    ("64 KiB that are costly to check", "checked at the cost of looking at each entry once", "position/test_position.py::test_64_kib_of_hostile_text"),
    ("A topic that is not allowed, beside one that does not exist", "the same answer, byte for byte", "server/test_refusals.py::test_a_topic_that_is_not_to_be_had"),
    ("Any text for an id", "a position, or 400", "position/test_position.py::test_any_text_is_a_position_or_refused"),
    ("Any bytes for a record", "one event at most, read alike by two parsers", "attacks/test_fuzz.py::test_anything"),
    ("Any stream of hostile records, in Chromium", "the events of the table, and nothing is run", "attacks/test_records.py::test_a_browser_reads_the_same"),
    ("Our answers loaded as a script, markup in an address", "not run", "attacks/test_records.py::test_what_we_repeat_is_no_script"),
    ("Markup for the name of a country", "text on the page", "web/test_page.py::test_strangers_words_stay_words"),
    ("An event of ours, forged in lines of JSON", "told apart in the format `envelope`; see security.md for the others", "attacks/test_records.py::test_a_line_of_ours_cannot_be_forged"),
    ("Record batches that are damaged, or made by hand", "records, or the error of a damaged record", "attacks/test_fuzz.py::test_batches_that_were_made_by_hand"),
    ("A broker's answer that is garbage", "refused", "kafka/test_fetch_protocol.py::test_garbage"),
    ("A configuration file of garbage", "one sentence", "attacks/test_fuzz.py::test_files"),
    ("A password in a wrong configuration", "is not shown", "config/test_config.py::test_a_password_is_never_shown"),
]  # fmt: skip


def render() -> str:
    """The whole page."""
    requests = sum(len(cases) for cases in TABLES.values())
    told = f"{requests} requests, {len(RECORDS)} records in {len(FORMATS)} formats, and {len(ELSEWHERE)} ways to exhaust or deceive."
    return "\n".join([HEAD, told, "", *_requests(), *_records(), *_others()])


def _requests() -> Iterator[str]:
    for where, cases in TABLES.items():
        yield f"## {where}\n\n| attack | answer |\n| --- | --- |"
        yield from (f"| {_cell(case.name)} | {', then '.join(case.answers)} |" for case in cases)
        yield "\nShown by `attacks/test_requests.py::test_requests`, one case for each line.\n"


def _records() -> Iterator[str]:
    yield "## Records\n"
    yield "*event*: one event named `message` that holds what was written; *base64*, *delete*: one of that name; *skipped*: none.\n"
    yield (
        "| a record with | "
        + " | ".join(f"`{name}`" for name in FORMATS)
        + " |\n| --- "
        + "| --- " * len(FORMATS)
        + "|"
    )
    yield from (f"| {_cell(record.name)} | {' | '.join(record.shown)} |" for record in RECORDS)
    yield "\nShown by `attacks/test_records.py::test_records`, one case for each line and format.\n"


def _others() -> Iterator[str]:
    yield "## Exhaustion, deception, and any bytes at all\n\n| attack | answer | shown by |\n| --- | --- | --- |"
    yield from (f"| {attack} | {answer} | `{test}` |" for attack, answer, test in ELSEWHERE)
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")


if __name__ == "__main__":
    PAGE.write_text(render())
