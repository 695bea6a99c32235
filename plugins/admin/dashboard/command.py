"""`lakemq dashboard`."""

from __future__ import annotations

import ssl
from importlib.metadata import version
from typing import Annotated

import typer

from lakemq.broker_core.api.command_line import AdminOptions, fail, option_groups, secret
from lakemq.broker_core.api.errors import ConfigError, LakeMQError
from lakemq.plugins.admin.dashboard.options import SECRET, Credentials, DashboardOptions

Proxy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address or network of a server before it, whose X-Forwarded-For is believed; "
        "repeatable.",
    ),
]
ConnectionsMax = Annotated[
    int, typer.Option(min=4, help="Connections at a time; one address has half of them.")
]
UnauthenticatedTimeoutMs = Annotated[
    int,
    typer.Option(
        "--login-timeout-ms",
        min=100,
        help="Close a connection without a login that got no answer for so long.",
    ),
]


@option_groups
def dashboard(
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port to serve on.")] = 9705,
    serve_cert: Annotated[
        str, typer.Option(metavar="FILE", help="Certificate chain of the dashboard (PEM): HTTPS.")
    ] = "",
    serve_key: Annotated[str, typer.Option(metavar="FILE", help="Its private key (PEM).")] = "",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A DNS name that browsers use for it; repeatable."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines without TLS.")
    ] = False,
    proxy: Proxy = None,
    connections_max: ConnectionsMax = 512,
    unauthenticated_timeout_ms: UnauthenticatedTimeoutMs = 10_000,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    *,
    node: AdminOptions,
) -> None:
    """Serve web pages that show and operate the cluster, through a node's admin API.

    Users log in with their names of the broker. With --username, figures for plots are gathered
    from the start; without, from the first login.
    """
    try:
        # Imported here: the extra may not be installed, and other commands start sooner.
        from lakemq.plugins.admin.dashboard.rendering import has_scripts
        from lakemq.plugins.admin.dashboard.serving.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "jinja2"):
            raise
        fail("the dashboard needs more packages: pip install 'lakemq[dashboard]'")
    try:
        api = node.admin if "://" in node.admin else f"http://{node.admin}"
        options = DashboardOptions(
            api.rstrip("/"), host, port, serve_cert, serve_key, _tls(node), insecure,
            tuple(allowed_host or ()), tuple(proxy or ()), connections_max,
            unauthenticated_timeout_ms, secret(SECRET) or "",
            Credentials(node.username, secret("PASSWORD") or ""),
        )  # fmt: skip
        if not has_scripts():
            typer.echo(
                "dashboard: scripts of third parties are missing, so nothing is plotted, and pages "
                "do not follow: make dashboard-assets", err=True,
            )  # fmt: skip
        serve(
            options, version("lakemq"), lambda url: typer.echo(f"dashboard {url}"),
            with_parent=with_parent,
        )  # fmt: skip
    except LakeMQError as error:
        fail(error)


def _tls(node: AdminOptions) -> ssl.SSLContext | None:
    """For an API of https. Raises ConfigError."""
    if not node.admin.startswith("https://"):
        return None
    try:
        made = ssl.create_default_context(cafile=node.tls_ca or None)
        if node.tls_cert:
            made.load_cert_chain(node.tls_cert, node.tls_key or None)
    except OSError as error:
        raise ConfigError(f"dashboard: the files of TLS can't be used: {error}") from None
    return made
