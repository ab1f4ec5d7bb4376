"""Filters: which records of its topics a stream contains. This package does no I/O and does not know HTTP, feeds or Kafka.

    where (route) + query (client) + claims and path parameters ─▶ Selection ─┬▶ Filter: shared, evaluated once per record
                                                                              └▶ Selector: the client's own values

A condition on a value that is different for each client, such as `key: "{claims.sub}"`, is not evaluated for each client.
It becomes a dimension: a feed looks up the record's value of the dimension in an index of its clients' selectors.
"""

from kafkasse.records.filter.dimensions import Dimension, Dimensions, Selector
from kafkasse.records.filter.expression import Expression, compile_expression
from kafkasse.records.filter.language import ExpressionError
from kafkasse.records.filter.query import Query, parse_query
from kafkasse.records.filter.selection import EVERYTHING, Filter, Selection
from kafkasse.records.filter.where import Where

__all__ = [
    "EVERYTHING", "Dimension", "Dimensions", "Expression", "ExpressionError", "Filter", "Query", "Selection",
    "Selector", "Where", "compile_expression", "parse_query",
]  # fmt: skip
