"""The Spark source: planning, reading, offsets."""
