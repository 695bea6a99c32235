"""Routes, their documentation, and how a request is carried out on this node and others."""
