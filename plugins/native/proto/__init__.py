"""The native protocol (protobuf) and the code generated from it."""
