"""MQTT packets on the wire: encoding, decoding, topic names and filters."""
