"""Transactions and staged batches."""
