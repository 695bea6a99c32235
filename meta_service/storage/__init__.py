"""The state machine's state on disk: RocksDB through rocksdict."""
