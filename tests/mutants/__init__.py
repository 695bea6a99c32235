"""Mutation testing of pure modules: small bugs are planted one by one, and tests must notice."""
