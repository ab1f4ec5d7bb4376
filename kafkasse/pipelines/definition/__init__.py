"""What a pipeline computes: its YAML file, the steps of its query, and the catalog of pipelines by name."""
