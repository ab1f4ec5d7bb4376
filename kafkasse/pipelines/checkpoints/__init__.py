"""Where a pipeline continues: its checkpoint, who may use it, and the versions of the results in its sinks."""
