"""Raft: pysyncobj as the engine, with a durable log, a safe wire and checked messages."""
