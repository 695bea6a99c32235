"""A member of a consumer group: heartbeats, and what they decide."""
