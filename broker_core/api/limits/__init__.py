"""Bounds on connections and shares of memory per user."""
