"""Several node processes on this machine: what `lakemq cluster demo` shows and tests harm."""
