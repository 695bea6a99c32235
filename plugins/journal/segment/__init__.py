"""Files of a partition: segments, indexes, checkpoints, manifest."""
