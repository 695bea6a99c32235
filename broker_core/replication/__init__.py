"""Replication of partitions: leaders, followers, and what they say to each other.

`leader`, `follower`, `lease`, `slots` and `roles` decide, without IO or a clock; what
calls them carries their answers out.
"""
