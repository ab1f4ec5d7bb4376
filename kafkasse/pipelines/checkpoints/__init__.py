"""The checkpoint of a pipeline, its lock, and the versions of the results in the sinks."""
