"""Completeness of what devices send: what is missing, came late or came twice."""
