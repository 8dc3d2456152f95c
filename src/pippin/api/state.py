"""State that several servers share: a database, opened at the start with the tables of everything stored there."""

import logging
from typing import Final

from pippin.api.access.ledger import BUCKETS, ServersLedger
from pippin.api.access.limits import Ledger
from pippin.api.batches.shelves import PIECES
from pippin.api.batches.shelves import TABLES as BATCHES
from pippin.api.databases.postgres import Postgres
from pippin.api.storage.elsewhere import TABLE as BACKGROUND
from pippin.api.storage.response_store import TABLES as RESPONSES
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError

log = logging.getLogger(__name__)

SCHEMA: Final = 1
_TABLES: Final = RESPONSES + BACKGROUND + BATCHES + PIECES + BUCKETS


def open_state(options: ServerOptions) -> Postgres | None:
    """The database that `state` names. Raises `ServerError` if it can't be reached or has another version."""
    if options.state is None:
        return None
    state = Postgres(options.state)
    try:
        state.prepare("CREATE TABLE IF NOT EXISTS pippin (version INTEGER NOT NULL);")
        with state.transaction(alone=True) as transaction:
            row = transaction.execute("SELECT version FROM pippin").fetchone()
            if row is None:
                transaction.execute("INSERT INTO pippin VALUES (?)", (SCHEMA,))
        if row is not None and row[0] != SCHEMA:
            message = (
                f"The state at {state.host} is of version {row[0]}, and this Pippin keeps version {SCHEMA}."
            )
            raise ServerError("unsupported", message, "state")
        state.prepare(_TABLES)
    except BaseException:
        state.close()
        raise
    log.info("Stored responses, files, batches and limits are shared at %s.", state.host)
    return state


def ledger_of(state: Postgres | None, own: Ledger) -> Ledger:
    """The ledger in which limits are counted; `own` is the ledger of this server alone."""
    return own if state is None else ServersLedger(state, own)
