"""What a member of the MetaService does above Raft: cache, watches, controller, heartbeats."""
