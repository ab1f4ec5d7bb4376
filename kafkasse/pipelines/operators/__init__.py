"""Stateful operators on DataFrames: the latest row of each key, and the top n of each group.

    latest_per_key ─▶ one row for each change of a key
    ranked         ─▶ stage 1, by key:   the old and the new row ─▶ removal from a group, addition to a group
                      stage 2, by group: the members in rank order ─▶ the top n, if they changed

The cost of a row does not depend on the number of keys, and both stages run in parallel. The Java classes in java/ keep the
state, because real-time mode runs no Python.
"""

from kafkasse.pipelines.operators.latest import latest_per_key
from kafkasse.pipelines.operators.ranked import ranked

__all__ = ["latest_per_key", "ranked"]
