"""Records the databases of the previous release: `python -m tests.releases.record`.

It takes the release's code out of the history, lets it fill databases, and writes them as SQL beside what that code
saw in them. A release is recorded once; a new one changes `release_code.py`, and removes the older recording.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.releases.databases import FILES, dump_file, dump_server
from tests.releases.lighthouse import COMMIT
from tests.releases.release_code import VERSION, python_path, unpack
from tests.servers.postgresql import installed_programs, own_postgresql
from tests.servers.service_process import base_environment

FILL: Final = Path(__file__).with_name("fill_release.py")
RECORDED: Final = Path(__file__).with_name(VERSION)


def fill(code: Path, database: str, inbox: str, broker: str, out: Path) -> None:
    """Fill databases by the code of the release."""
    subprocess.run(
        [sys.executable, FILL, database, inbox, broker, COMMIT, out],
        env={**base_environment(), "PYTHONPATH": python_path(code)},
        cwd=code,
        check=True,
    )


def fill_files(code: Path, folder: Path, out: Path) -> None:
    """Fill the SQLite files of an installation in that folder."""
    store, inbox, broker = (f"sqlite:///{folder / name}" for name in ("store.db", "inbox.db", "broker.db"))
    fill(code, store, inbox, broker, out)


def record(code: Path, folder: Path) -> None:
    """Write all recordings into RECORDED, by the code that was unpacked."""
    RECORDED.mkdir(exist_ok=True)
    fill_files(code, folder, RECORDED / "sqlite.json")
    for name in FILES:
        (RECORDED / f"{name}.sql").write_text(dump_file(folder / name), "utf-8")
    with own_postgresql() as server, server.database() as database:
        broker = f"sqlite:///{folder / 'unused.db'}"
        fill(code, database.url, database.url, broker, RECORDED / "postgresql.json")
        (RECORDED / "postgresql.sql").write_text(dump_server(installed_programs(), database.url), "utf-8")


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        code = unpack(Path(scratch) / "code")
        files = Path(scratch) / "files"
        files.mkdir()
        record(code, files)
