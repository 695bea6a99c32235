"""The wire between members: frames over TCP with mutual TLS."""
