"""Nodes talk to each other: the wire between brokers, and the routes of records over it."""
