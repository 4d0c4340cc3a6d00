"""The scratch schema in which a version is made once more, to be compared.

Mostly it is made in a transaction that is rolled back. Where others read it, it is committed, and
what a process leaves that is killed then is removed by the next one.
"""

from typing import Any

from psycopg import Connection, sql

from reservation.declaration.model_version import ModelVersion
from reservation.errors import StoreError
from reservation.read_models.catalog import QUERIES, execute, schema_state
from reservation.read_models.made_versions import tables_comment


def scratch_schema(model: ModelVersion) -> str:
    """Return the name of the schema."""
    return f"{model.schema}_verify"


def scratch_comment(model: ModelVersion) -> str:
    """Return the comment by which a schema is known to be one."""
    return tables_comment(model, [])


def lock_scratch(connection: Connection[Any], model: ModelVersion) -> None:
    """Keep others from using the schema until the end of the transaction."""
    values = {"model": scratch_schema(model)}
    ((is_locked,),) = connection.execute(QUERIES["try_lock"], values).fetchall()
    if not is_locked:
        raise StoreError(
            f"Another process verifies version {model.version} of the read model {model.name}; "
            f"wait for it"
        )


def remove_scratch(connection: Connection[Any], model: ModelVersion) -> None:
    """Remove what is in the schema, and the schema too if the role may create it again."""
    name = scratch_schema(model)
    found = schema_state(connection, name)
    if found is None:
        return
    if found.is_used and not (found.is_own and found.comment == scratch_comment(model)):
        raise StoreError(
            f"The schema {name} is in use for something else than the verification of version "
            f"{model.version} of the read model {model.name}; rename it"
        )
    ((may_create, *_),) = connection.execute(QUERIES["may_create"]).fetchall()
    if may_create and found.comment == scratch_comment(model):
        execute(connection, "drop_schema", schema=sql.Identifier(name))
        return
    for (statement,) in connection.execute(QUERIES["drop_objects"], {"schema": name}).fetchall():
        connection.execute(statement)
