"""The runs of a query: how a run starts, fails, skips records and is replaced by a rebuild."""
