"""Making configuration files."""
