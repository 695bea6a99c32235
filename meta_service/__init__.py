"""What the cluster agrees on: a Raft group over a catalog in RocksDB. Imports nothing of ours."""
