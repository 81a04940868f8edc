"""The PostgreSQL that the tests run against; `own_postgresql` says where it comes from."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install
from tests.servers.docker import docker_answers
from tests.servers.postgresql_cluster import PostgreSQLCluster
from tests.servers.postgresql_docker import PostgreSQLContainer
from tests.servers.postgresql_server import OLDEST, PostgreSQLServer, ScratchDatabase

__all__ = ["PostgreSQLServer", "ScratchDatabase", "own_postgresql", "shared_postgresql"]

URL_VARIABLE: Final = "SOLSTICE_TEST_POSTGRES_URL"
DEBIAN: Final = Path("/usr/lib/postgresql")
"""Debian's folder of every major version's programs; none of them is on PATH."""

NOTHING_FOUND: Final = f"""\
These tests need a real PostgreSQL, {OLDEST} or newer, and there is none here. Any one of these will do:
  - Docker: start the daemon, so that `docker version` answers (image postgres:17-alpine);
  - PostgreSQL on this machine: `apt-get install postgresql`, `dnf install postgresql-server` or
    `brew install postgresql@17`, so that `initdb` and `postgres` are on PATH; it needs no running service;
  - on Debian 12, Ubuntu 24.04 or newer: run the tests as root, and they install the package themselves;
  - a server elsewhere: {URL_VARIABLE}=postgresql://user:password@host:5432/postgres, with the right to
    create databases."""


class ForeignPostgreSQL(PostgreSQLServer):
    """A foreign server: used, never stopped."""

    def start(self) -> None:
        if int(self.version.partition(".")[0]) < OLDEST:
            raise RuntimeError(f"{URL_VARIABLE}: PostgreSQL {self.version} is older than {OLDEST}")

    def stop(self) -> None:
        raise RuntimeError(
            f"the server of {URL_VARIABLE} is not ours to stop; use the own_postgresql fixture"
        )

    def kill(self) -> None:
        self.stop()

    def close(self) -> None:
        """Leave it running: it existed before us."""


def shared_postgresql() -> PostgreSQLServer:
    """The server for tests that leave it running, not yet started. Enter it with `with`."""
    url = os.environ.get(URL_VARIABLE)
    return ForeignPostgreSQL(url) if url else own_postgresql()


def own_postgresql(*, synced: bool = False, settings: Mapping[str, str] | None = None) -> PostgreSQLServer:
    """A server for a test that stops, kills or measures it, not yet started.

    Enter it with `with`.

    Docker, else the machine's own PostgreSQL, else the distribution's package, installed by us when we are root.
    `synced` makes commits wait for the disk as in production; `settings` are PostgreSQL's own. Raises RuntimeError
    that says what to install when there is no way.
    """
    if docker_answers():
        return PostgreSQLContainer(synced=synced, settings=settings)
    return PostgreSQLCluster(installed_programs(), synced=synced, settings=settings)


def installed_programs() -> Path:
    """The folder of this machine's PostgreSQL, which is installed where there is none.

    Raises RuntimeError that says what to install when there is no way.
    """
    found = _installed()
    if found is None and apt_can_install():
        apt_install("postgresql")
        found = _installed()
    if found is None:
        raise RuntimeError(NOTHING_FOUND)
    return found


def _installed() -> Path | None:
    """The programs of this machine's newest PostgreSQL that is new enough."""
    candidates = [path.parent for path in DEBIAN.glob("*/bin/postgres")]
    on_path = shutil.which("postgres")
    if on_path is not None:
        # Through links, since initdb finds its share files relative to where it really is.
        candidates.append(Path(on_path).resolve().parent)
    versions = {path: _major(path) for path in candidates if (path / "initdb").exists()}
    usable = [path for path, major in versions.items() if major >= OLDEST]
    return max(usable, key=lambda path: versions[path], default=None)


def _major(programs: Path) -> int:
    """`postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)` is 15."""
    done = subprocess.run(
        [str(programs / "postgres"), "--version"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"PostgreSQL\) (\d+)", done)
    return int(found[1]) if found else 0
