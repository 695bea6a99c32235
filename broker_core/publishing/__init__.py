"""What happens to records between a protocol and the log of their partition."""
