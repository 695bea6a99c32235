"""The only door of the MetaService: types, errors, settings and the client."""
