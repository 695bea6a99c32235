"""The host of plugins and the road a record takes. Knows no protocol and no file format."""
