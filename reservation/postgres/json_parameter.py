"""A JSON value as a parameter of a statement, in a database of any encoding."""

import json
from functools import partial
from typing import Any

from psycopg.types.json import Jsonb

_dumps = partial(json.dumps, ensure_ascii=False)


def json_parameter(value: Any) -> Jsonb:  # Any: what JSON can express
    """Return a value as a parameter, with its letters as they are.

    psycopg would escape all but ASCII, and where the encoding is SQL_ASCII, the server cannot
    translate that.
    """
    return Jsonb(value, dumps=_dumps)
