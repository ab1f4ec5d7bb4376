"""The definition of a pipeline: its YAML file, the steps of its query, and the catalog of pipelines by name."""
