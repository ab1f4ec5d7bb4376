"""The running Top 3 countries by size, per continent."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafkasse.pipelines.json_records import TEXT, WHOLE_NUMBER, json_objects
from kafkasse.pipelines.operators import ranked

COUNTRY = {"code": TEXT, "name": TEXT, "population": WHOLE_NUMBER, "size": WHOLE_NUMBER, "continent": TEXT}


def topn(records: DataFrame, n: int = 3) -> DataFrame:
    """Compute the `n` largest countries of each continent.

    Args:
        records: rows of Spark's Kafka source, in order for each key. The value is a country as a JSON object with the
            fields of COUNTRY, and the key is the country's code. A null value removes the country. Bad records
            become dead letters, see json_records.json_objects.
        n: the number of countries for each continent.

    Returns:
        One row each time that the top `n` of a continent change. `key` is the continent. `value` is
        `{"continent": …, "nrs": [COUNTRY, …]}` with one to `n` countries, the largest first, and countries of equal
        size ordered by code. The value is null (a tombstone) when the continent's last country was removed.
    """
    countries = json_objects(records, COUNTRY, key="code")
    members = countries.withColumns({"group": F.col("continent"), "rank": F.col("size"), "item": F.struct(*COUNTRY)})
    top = ranked(members, n)
    continent = F.struct(F.col("group").alias("continent"), F.col("items").alias("nrs"))
    value = F.when(F.size("items") > 0, F.to_json(continent)).alias("value")
    return top.select(F.col("group").alias("key"), value, "version", "position")
