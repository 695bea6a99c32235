"""Authentication and topic plugins of amqtt, asked by LakeMQ."""
