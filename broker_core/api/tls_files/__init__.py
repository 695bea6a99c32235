"""Files of a listener: its TLS context, and what is read again when a file was replaced."""
