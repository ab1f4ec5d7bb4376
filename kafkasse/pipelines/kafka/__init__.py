"""Topics as Spark's tables: reading, writing, headers, and the administration of topics."""
