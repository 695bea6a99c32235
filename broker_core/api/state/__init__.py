"""Internal topics and the state that the broker and its plugins keep in them."""
