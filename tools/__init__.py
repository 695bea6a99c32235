"""Build tools: generated code and documentation pages."""
