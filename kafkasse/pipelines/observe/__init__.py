"""The status of a pipeline, its lag and its metrics."""
