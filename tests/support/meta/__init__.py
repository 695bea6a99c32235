"""The MetaService in tests."""
