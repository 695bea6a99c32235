"""The columnar record batch, record headers and the default partitioner."""
