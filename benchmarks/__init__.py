"""Speed and growth of LakeMQ beside peers, in one harness: `python -m benchmarks --help`."""
