"""The consumer: fetching, group membership, topic patterns."""
