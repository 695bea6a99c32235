"""Sockets, requests and answers of HTTP."""
