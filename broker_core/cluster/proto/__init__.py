"""The protocol between brokers (protobuf) and the code generated from it."""
