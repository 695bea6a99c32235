"""What is fuzzed, a module for each part of the product."""
