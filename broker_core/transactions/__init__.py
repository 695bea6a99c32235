"""Staged batches, transactions and scheduled records: pure decisions, and the edge around them."""
