"""The command line of the distribution `lakemq-client`."""
