"""A cluster of three LakeMQ processes beside three of Kafka's: see `__main__`."""
