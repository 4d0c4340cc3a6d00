"""The part of a component that is told of failed attempts."""

from collections.abc import Callable
from typing import TypeVar

from reservation.handlers.checks.declaration_checks import check_error_hook
from reservation.handlers.failed_attempt import FailedAttempt

ErrorHook = Callable[[BaseException, FailedAttempt], object]

H = TypeVar("H", bound=ErrorHook)


class ErrorHooks:
    """The functions that consumers call when an attempt to handle a message fails."""

    def __init__(self, name: str) -> None:
        """Begin with none.

        Args:
            name: the component's name.
        """
        self.name = name
        self.error_hooks: list[ErrorHook] = []

    def on_error(self, hook: H) -> H:
        """Declare the decorated function to be told of each failed attempt to handle a message.

        It takes the exception, with its traceback, and a `FailedAttempt`. The exception is the one
        that the handler, or other code of the component, raised; where none did, as for a message
        of an unknown type, it is the `MessageError` of the framework. Several functions are called
        in the order of their declaration.

        The function is for reporting, to Sentry for example. It never changes what becomes of the
        message: what it raises is logged as ``error_hook_failed`` and ignored, and what it returns
        is ignored too. It is called in the consumer's process and thread, once what becomes of the
        message is decided and no transaction is open. So the consumer handles nothing meanwhile,
        and what takes long belongs into a thread or a queue. Consumers of several categories that
        run in one process may call it at the same time. It is not called again for an attempt: if
        the process ends before the call, the attempt is not reported.

        It is not called where the handler raises `Reject`, nor for a fault of the surroundings
        such as a lost connection, nor for a conflict or a process that died, which raise nothing.
        If a message fails in a batch with others, its first attempt is the one that it gets by
        itself.

        Args:
            hook: the function.

        Raises:
            DeclarationError: the function cannot be called so.
        """
        check_error_hook(self.name, hook)
        self.error_hooks.append(hook)
        return hook
