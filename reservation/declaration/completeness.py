"""Whether a component declares enough to be run."""

from collections.abc import Collection

from reservation.errors import DeclarationError


def check_complete(
    component: str,
    initiations: Collection[str],
    reservations: Collection[str],
    handlers: Collection[str],
    subscribed: Collection[str] = (),
) -> None:
    """Make sure that a component has commands, and a handler for each, or subscriptions.

    Args:
        component: the component's name.
        initiations: the types of the commands that start a stream, which have a handler.
        reservations: those of the reserved commands.
        handlers: those of the other commands with a handler, or of reserved ones.
        subscribed: the categories of others that it handles messages of.

    Raises:
        DeclarationError: there is no command and no such category, or a reserved command has no
            handler.
    """
    if not (initiations or reservations or handlers or subscribed):
        raise DeclarationError(
            f"The component {component!r} handles no command; declare one with "
            f"@{component}.handle, @{component}.initiate or {component}.reserve, or a subscription "
            f"with @{component}.on"
        )
    for name in reservations:
        if name not in handlers:
            raise DeclarationError(
                f"The component {component!r} reserves {name} and has no handler for it; "
                f"declare one with @{component}.handle({name})"
            )
