"""The schedules port, and the queue that orders what is due later."""
