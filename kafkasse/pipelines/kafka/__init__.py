"""Topics as Spark's DataFrames: reading, writing, headers, and the administration of topics."""
