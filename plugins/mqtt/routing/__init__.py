"""From a published message to the sessions that subscribe to it."""
