"""The only door of the broker core: what a plugin or the SDK may import."""
