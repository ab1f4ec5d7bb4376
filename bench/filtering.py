"""The cost of filters: the CPU time to filter and encode one record of 1 KiB, in this process and without Kafka."""

from __future__ import annotations

import time

from bench import records
from bench.figures import Figures, Row
from bench.testbed import QUICK, Testbed
from kafkasse.log import Batch, Partition
from kafkasse.log.memory import MemoryRecord
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Dimension, Dimensions, Filter, compile_expression
from kafkasse.records.position import IdType, IdWriter

RECORD_BYTES = 1024
BATCH_RECORDS = 500
SECONDS = 0.5
QUICK_SECONDS = 0.01
PARTITION = Partition("t", 0)
EXPRESSION = "value.member_3 > 5 && value.mark != 'x' && headers.type == 'paid'"

# The name of each filter, one that all records match, and one that no record matches.
FILTERS: dict[str, tuple[Encoder, Encoder]] = {
    name: (Encoder(filter=matching), Encoder(filter=other))
    for name, (matching, other) in {
        "key": (Filter.of(["k1"]), Filter.of(["k2"])),
        "header": (Filter.of(headers={"type": ["paid"]}), Filter.of(headers={"type": ["new"]})),
        "field": (Filter.of(fields={"mark": [records.MARK.decode()]}), Filter.of(fields={"mark": ["x"]})),
        "expression": (
            Filter.of(expressions=[compile_expression(EXPRESSION)]),
            Filter.of(expressions=[compile_expression(EXPRESSION.replace("!=", "=="))]),
        ),
    }.items()
}


def measure(testbed: Testbed) -> Figures:
    """Measure each filter with records that match it and with records that do not."""
    seconds = QUICK_SECONDS if testbed.scale is QUICK else SECONDS
    unfiltered = _cost(Encoder(), seconds)
    rows = [Row("filtering.none", "filter and encode a record: no filter", unfiltered, "µs")]
    for name, encoders in FILTERS.items():
        for kind, encoder in zip(("matches", "does not match"), encoders, strict=True):
            key, what = f"filtering.{name}.{kind.replace(' ', '_')}", f"filter and encode a record: {name}, {kind}"
            rows.append(Row(key, what, _cost(encoder, seconds), "µs", unfiltered, "no filter"))
    keyed = _cost(Encoder(dimensions=Dimensions((Dimension("key"),))), seconds)
    rows.append(Row("filtering.dimension", "encode a record: keyed dispatch", keyed, "µs", unfiltered, "no filter"))
    return Figures(rows)


def _cost(encoder: Encoder, seconds: float) -> float:
    """Return the CPU time for one record, in microseconds."""
    value = records.value(RECORD_BYTES)
    batch = Batch(
        PARTITION,
        [MemoryRecord(n, 1_790_000_000_000, b"k1", value, [("type", b"paid")]) for n in range(BATCH_RECORDS)],
        BATCH_RECORDS,
    )
    count, began = 0, time.process_time()
    while (took := time.process_time() - began) < seconds:
        ids, end = IdWriter({PARTITION: 0}, {"t": ""}, id_type=IdType.OFFSET, compact=False), 0
        while end < BATCH_RECORDS:
            end = encoder.encode_piece(batch, end, ids).end
        count += BATCH_RECORDS
    return took / count * 1e6
