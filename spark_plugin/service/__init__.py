"""What a running export shows over HTTP."""
