"""Consumer groups by the native protocol and the admin API."""
