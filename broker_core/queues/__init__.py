"""Queues: many consumers share the records of a topic, each record acknowledged for itself.

After KIP-932 (share groups): `partition_state` decides who gets which record, `snapshot` is what is
kept of it, `store` keeps it, `host` drives it, `dead_letters` writes dead letters.
"""
