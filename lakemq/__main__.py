"""`python -m lakemq` is the `lakemq` command."""

from lakemq.cli import main

main()
