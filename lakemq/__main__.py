"""`python -m lakemq` is the `lakemq` command."""

from lakemq.cli.main import main

main()
