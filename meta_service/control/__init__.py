"""The controller: failure detection, leadership and placement of partitions."""
