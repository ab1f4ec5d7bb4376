"""The running Top 3 countries by size, per continent."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafkasse.pipelines.records import TEXT, WHOLE_NUMBER, json_objects
from kafkasse.pipelines.top import top_n

COUNTRY = {"code": TEXT, "name": TEXT, "population": WHOLE_NUMBER, "size": WHOLE_NUMBER, "continent": TEXT}
N = 3


def topn(records: DataFrame) -> DataFrame:
    """Follow the largest countries of each continent.

    Args:
        records: Kafka's, in order for each key: a country as a JSON object with the fields of COUNTRY, its code the
            key; a null value removes the country. What is neither is set aside, see records.json_objects.

    Returns:
        `key`, the continent, and `value`, `{"continent": …, "nrs": [COUNTRY, …]}` with one to three countries, largest
        first, equal sizes by code: a row each time that a continent's Top 3 become others. The value is null, a
        tombstone, when a continent's last country has left.
    """
    countries = json_objects(records, COUNTRY, key="code")
    ranked = countries.select(
        "key", F.col("continent").alias("group"), F.col("size").alias("rank"), F.struct(*COUNTRY).alias("item")
    )
    continent = F.struct(F.col("group").alias("continent"), F.col("items").alias("nrs"))
    return top_n(ranked, N).select(
        F.col("group").alias("key"), F.when(F.size("items") > 0, F.to_json(continent)).alias("value")
    )
