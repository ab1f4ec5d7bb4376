"""Tools of commands and pipelines: a Java runtime, jars, a Kafka broker and a progress line. No web process imports them.

broker              EmbeddedBroker, a Kafka broker without Docker
files               replaces a file as a whole
java                finds a Java runtime and downloads jars
progress            a progress line on the terminal
supervised_process  a child process that does not outlive its parent
"""
