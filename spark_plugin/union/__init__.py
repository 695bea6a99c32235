"""A table and the journal behind it, read as one."""
