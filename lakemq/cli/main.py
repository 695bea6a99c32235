"""Entry point of the `lakemq` command.

What is begun most often, or waited for, imports no more than it needs: the commands of the whole
product and its plugins are half a second of imports.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.util import find_spec

from lakemq import __version__


def main() -> None:
    """Run the command line of this process."""
    words = sys.argv[1:]
    if words == ["--version"]:
        sys.stdout.write(f"lakemq {__version__}\n")
    elif find_spec("lakemq.cli.commands") is None:  # of lakemq-client
        try:
            from lakemq.cli.client.commands import run as run_client
        except ModuleNotFoundError as error:
            if error.name not in ("typer", "rich"):
                raise
            sys.exit("lakemq: commands need more packages: pip install 'lakemq-client[cli]'")
        run_client()
    elif words[:1] == ["start"]:
        gc.disable()  # until the node begins: imports leave nothing to collect
        from lakemq.cli.start import app

        app()
    else:
        # Exports fork to start Spark's JVM; gRPC's fork handlers, which it takes up when it is
        # imported, crash some of these children before they are the JVM.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        from lakemq.cli.commands import run

        run()
