"""What is computed: functions from DataFrame to DataFrame, which know nothing of Kafka clusters, checkpoints or sessions."""
