"""What the broker and the SDK both need of the native protocol beside its messages."""
