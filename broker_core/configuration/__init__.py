"""The TOML file: sections, validation and errors with line numbers."""
