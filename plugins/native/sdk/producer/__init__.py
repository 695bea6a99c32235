"""The producer: accumulator, partitioner and produce streams."""
