"""Spark's session and JVM, and the only use of PySpark's private names."""
