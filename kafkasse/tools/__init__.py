"""What only development machines and pipelines need: a Java runtime, jars, and a Kafka broker. No web process imports this.

broker    EmbeddedBroker, a Kafka broker without Docker
java      finds a Java runtime, downloads jars and compiles our own
progress  a line on the terminal while something takes long
"""
