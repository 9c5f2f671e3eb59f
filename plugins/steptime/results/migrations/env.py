"""Run by Alembic, on the connection and inside the transaction that `results.database` opened."""

from alembic import context  # noqa: TID253 - only Alembic imports this module

from steptime.results.database import VERSION_TABLE
from steptime.results.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # in SQLite as well: `results.database` begins its transactions itself
)
context.run_migrations()
