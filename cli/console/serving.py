"""Checks what the options name, and serves the console until it is stopped."""

import errno
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import uvicorn

from cli.common.errors import CommandError
from cli.console.application import AccessRules, application
from cli.console.console import Console
from cli.console.reading.database import Database
from cli.console.security import (
    SIGN_IN_PATH,
    ProxySignIn,
    SecurityHeaders,
    TokenSignIn,
    token_in_file,
)
from reservation.app_path import load_component
from reservation.component import Component
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.schema.install import check_installed
from reservation.store.schema.missing_rights import may_change, rights_as

_OWN_NAMES = ("localhost", "127.0.0.1", "::1")

_QUERIES = load_queries("cli.console", "serving.sql")

# Seconds that open requests have to end once the console is asked to stop.
_STOP_SECONDS = 5


def serve(
    apps: Sequence[str],
    app_dir: str,
    database_url: str,
    operator_database_url: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    proxy_header: str | None,
    proxy_addresses: Sequence[str],
    allowed_hosts: Sequence[str],
) -> None:
    """Serve the console until SIGINT or SIGTERM."""
    sign_in = _sign_in(host, token_file, proxy_header, proxy_addresses)
    hosts = _hosts(host, allowed_hosts)
    components = _components(apps, app_dir)
    _check_reader(database_url)
    if operator_database_url is not None:
        _check_operator(database_url, operator_database_url)
    with _listen(host, port) as listener:
        taken = listener.getsockname()[1]
        console = Console(
            Database(database_url),
            None
            if operator_database_url is None
            else Database(operator_database_url, "reservation console operator"),
            {component.name: component for component in components.values()},
            {component.name: app for app, component in components.items()},
            can_sign_out=isinstance(sign_in, TokenSignIn),
        )
        access = AccessRules(sign_in, hosts, proxy_addresses, f"reservation-console-{taken}")
        # uvicorn handles both signals while it runs, and raises them again afterwards.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            _announce(host, taken, sign_in)
            _run(application(console, access), listener)


def _run(app: SecurityHeaders, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,  # a middleware of the application reads them
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _sign_in(
    host: str, token_file: Path | None, proxy_header: str | None, proxy_addresses: Sequence[str]
) -> TokenSignIn | ProxySignIn:
    for address in proxy_addresses:
        try:
            ipaddress.ip_network(address)
        except ValueError as error:
            raise CommandError(
                f"{address!r} is not an address of a proxy; write one such as 10.0.0.5 or "
                f"10.1.0.0/16"
            ) from error
    if token_file is not None and proxy_header is not None:
        raise CommandError("Give --token-file or --proxy-header, not both")
    if proxy_header is not None:
        if not proxy_addresses:
            raise CommandError(
                "--proxy-header is trusted only from the proxy: name its address with "
                "--proxy-address"
            )
        if not proxy_header.isascii() or not proxy_header.replace("-", "").isalnum():
            raise CommandError(
                f"{proxy_header!r} is not the name of a header; write one such as X-Forwarded-User"
            )
        return ProxySignIn(proxy_header)
    if token_file is not None:
        return token_in_file(token_file)
    if not _is_own(host):
        raise CommandError(
            f"Others could open the console at {host}: give --token-file or --proxy-header, or "
            f"leave out --host"
        )
    return TokenSignIn(secrets.token_urlsafe(32), in_address=True)


def _hosts(host: str, allowed_hosts: Sequence[str]) -> set[str]:
    """Return the names and addresses by which browsers may call the console, as they do."""
    for name in allowed_hosts:
        is_name = name.strip("[]") and not set("/*") & set(name)
        if not is_name or (":" in name and not _is_address(name)):
            raise CommandError(
                f"{name!r} is not the name of a host; write it without scheme and port, such as "
                f"console.example.com"
            )
    names = (name.lower().strip("[]") for name in (*_OWN_NAMES, host, *allowed_hosts))
    return {f"[{name}]" if ":" in name else name for name in names}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_own(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _components(apps: Sequence[str], app_dir: str) -> dict[str, Component[Any]]:
    components = {app: load_component(app, app_dir) for app in apps}
    names = [component.name for component in components.values()]
    if len(set(names)) < len(names):
        raise CommandError(
            "Two of the app paths lead to components with the same name; name each component once"
        )
    return components


def _check_reader(database_url: str) -> None:
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        role, exceeds = rights_as(connection, "auditor"), may_change(connection)
    if role.lacks:
        raise CommandError(
            f"The role {role.role} lacks rights of an auditor, such as {role.lacks[0]}; run "
            f"`{role.command}`, or name another role in --database-url"
        )
    if exceeds:
        click.echo(
            f"The console reads as {role.role}, which may do more than an auditor; give it a role "
            f"of its own: `reservation store grants auditor ROLE`",
            err=True,
        )


def _check_operator(database_url: str, operator_database_url: str) -> None:
    with connect(operator_database_url, autocommit=True) as connection:
        check_installed(connection)
        role = rights_as(connection, "operator")
    if role.lacks:
        raise CommandError(
            f"The role {role.role} lacks rights of an operator, such as {role.lacks[0]}; run "
            f"`{role.command}`, or name another role in --operator-database-url"
        )
    if not _is_one_store(database_url, operator_database_url):
        raise CommandError(
            "--database-url and --operator-database-url name different stores; name one store, "
            "with two roles"
        )


def _is_one_store(one: str, other: str) -> bool:
    """Return whether two addresses lead to one database, or the first to a replica of the second.

    A copy has the identity of the store that it was made of, so a lock has to be seen too.
    """
    number = {"number": secrets.randbits(63)}
    with connect(other) as acting, connect(one, autocommit=True) as reading, translated():
        store = acting.execute(_QUERIES["store"]).fetchall()
        acting.execute(_QUERIES["mark"], number)
        is_marked = reading.execute(_QUERIES["is_marked"], number).fetchone() == (True,)
        return is_marked and reading.execute(_QUERIES["store"]).fetchall() == store


def _listen(host: str, port: int) -> socket.socket:
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        return socket.create_server((name, port), family=family)
    except (OSError, UnicodeError) as error:
        # Python names the address in its text.
        number = error.errno if isinstance(error, OSError) else None
        reason = str(error) if number not in errno.errorcode else os.strerror(number or 0)
        raise CommandError(
            f"Cannot listen on {host}, port {port}: {reason}; name another with --host and --port"
        ) from error


def _announce(host: str, port: int, sign_in: TokenSignIn | ProxySignIn) -> None:
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    if isinstance(sign_in, TokenSignIn) and sign_in.in_address:
        address = f"http://{shown}:{port}{SIGN_IN_PATH}?token={sign_in.token}"
    click.echo(f"The console is at {address}", err=True)
    if not isinstance(sign_in, ProxySignIn) and not _is_own(host):
        click.echo(
            "Tokens and data pass unencrypted; put a proxy with TLS before the console.", err=True
        )
    sys.stderr.flush()
