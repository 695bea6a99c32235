"""The asyncio client and its view of the cluster."""
