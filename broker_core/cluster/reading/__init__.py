"""Reading of partitions that other nodes lead."""
