"""The native protocol: gRPC services for records, consumer groups, queues, transactions, schedules,
schemas and administration; their command lines; and the Python SDK (`sdk`), which needs no broker.
"""
