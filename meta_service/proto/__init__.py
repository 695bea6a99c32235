"""Protocol of the MetaService (protobuf) and the code generated from it."""
