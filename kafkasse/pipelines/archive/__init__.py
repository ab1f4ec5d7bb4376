"""Archive topics: copy the committed records of Kafka topics to Parquet files, each offset exactly once.

    application  runs until a stop request, with restarts
    writer       one commit: plan, let Spark write, check, commit
    offsets      offsets, times and leader epochs, from Kafka's Java client in Spark's JVM

The archive itself contains the positions: its newest commit states which offsets are archived. There is no checkpoint that
could contradict it. kafkasse/archive describes the files.
"""
