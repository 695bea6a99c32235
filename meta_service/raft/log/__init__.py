"""The Raft log on disk."""
