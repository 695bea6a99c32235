"""The log of one partition: append, flush, read, recover."""
