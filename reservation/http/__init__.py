"""HTTP endpoints that may be called again: the ``Idempotency-Key`` header for ASGI applications.

`Idempotency` is a middleware for Starlette, FastAPI and any other ASGI application. It stores the
answer to each request that has a key, and gives it again. `KeyedRequest` is what an endpoint sends
its command with. Needs the extra ``http``.

(Source: draft-ietf-httpapi-idempotency-key-header-07; what is stored, and that a failure is not,
follows version 2 of Stripe's API.)
"""

try:
    import starlette  # noqa: F401
except ImportError as error:
    raise ImportError(
        "reservation.http needs Starlette, which is not installed: pip install 'reservation[http]'"
    ) from error

from reservation.http.keyed_request import KeyedRequest
from reservation.http.middleware import Idempotency

__all__ = ["Idempotency", "KeyedRequest"]
