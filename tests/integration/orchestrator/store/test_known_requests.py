"""A store says which requests it knows, also those that were another's copy."""

import sqlite3
from contextlib import closing

from solstice_common.settings import is_postgresql, sqlite_path
from solstice_common.storage.postgresql import connected
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.admin.known_requests import known_in_postgresql, known_in_sqlite
from tests.builders import job_request


async def test_only_requests_with_a_run_are_known(store_url: str) -> None:
    first, copy, other = (job_request(idempotency_key=key) for key in ("one", "one", "two"))
    async with open_store(store_url) as store:
        await store.admit([first])
        await store.admit([copy])
    request_ids = [each.request_id for each in (first, copy, other)]
    if is_postgresql(store_url):
        async with connected(store_url) as connection:
            known = await known_in_postgresql(connection, request_ids)
    else:
        with closing(sqlite3.connect(sqlite_path(store_url))) as file:
            known = known_in_sqlite(file, request_ids)
    assert known == {first.request_id, copy.request_id}
