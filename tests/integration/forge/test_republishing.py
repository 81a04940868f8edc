"""An inbox gives published job requests of late, and publishes chosen ones once more."""

import sqlite3
from contextlib import closing

from msgspec.structs import replace

from solstice_common.settings import is_postgresql, sqlite_path
from solstice_common.storage.postgresql import connected
from solstice_forge.inbox import open_inbox, republishing
from tests.builders import job_cancel, job_request
from tests.inboxes import NOON, delivery


async def test_published_job_requests_of_late_can_be_published_again(empty_url: str) -> None:
    bodies = {"old": job_request(), "new": job_request(), "cancel": job_cancel(), "pending": job_request()}
    async with open_inbox(empty_url) as inbox, inbox.relaying():
        for name, message in bodies.items():
            sent = replace(
                delivery(name, received_at=NOON - 100 if name == "old" else NOON), request=message.encode()
            )
            if name == "pending":
                await inbox.published([each.row_id for each in await inbox.pending(9)])
            await inbox.keep(sent)
    if is_postgresql(empty_url):
        async with connected(empty_url) as connection:
            found = await republishing.published_in_postgresql(connection, NOON - 50)
            await republishing.unpublish_in_postgresql(connection, found.values())
    else:
        with closing(sqlite3.connect(sqlite_path(empty_url), isolation_level=None)) as file:
            found = republishing.published_in_sqlite(file, NOON - 50)
            republishing.unpublish_in_sqlite(file, found.values())
    assert list(found) == ["request of forgejo new"]
    async with open_inbox(empty_url) as inbox, inbox.relaying():
        pending = [each.request_id for each in await inbox.pending(9)]
    assert pending == ["request of forgejo new", "request of forgejo pending"]
