"""An image of this machine's PostgreSQL, whose variables are those of the well-known image."""

import json
from typing import Final

from solstice_cli.demo.local_images import pack
from tests.servers.podman import PROGRAMS, PodmanStore
from tests.servers.postgresql import DEBIAN, installed_programs

POSTGRESQL: Final = "localhost/solstice-postgresql:1"
SERVES: Final = """
set -e
run() { setpriv --reuid=70 --regid=70 --clear-groups "$@"; }
echo root:x:0:0::/:/bin/sh > /etc/passwd
echo postgres:x:70:70::/:/bin/sh >> /etc/passwd
mkdir -p /data/db /var/run/postgresql
chown 70:70 /data/db /var/run/postgresql
echo "$POSTGRES_PASSWORD" > /data/password
run initdb -D /data/db -U "$POSTGRES_USER" --auth-local=trust --auth-host=scram-sha-256 --pwfile=/data/password \
    --encoding=UTF8 --locale=C --no-sync > /dev/null
echo "CREATE DATABASE $POSTGRES_USER" | run postgres --single -D /data/db postgres > /dev/null
exec setpriv --reuid=70 --regid=70 --clear-groups \
    postgres -D /data/db -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB
"""


def make_postgresql_image(store: PodmanStore) -> None:
    """Import it, with its clients and a shell for jobs that have it, too."""
    programs = installed_programs()
    version = programs.parent.name
    files = [
        *(programs / name for name in ("initdb", "postgres", "psql", "pg_isready")),
        *(each for each in (programs.parent / "lib").glob("*.so") if not each.name.startswith("llvm")),
        DEBIAN.parent.parent / "share" / "postgresql" / version,
    ]
    archive = store.folder / "postgresql.tar"
    pack(archive, (*PROGRAMS, "chown", "setpriv"), files)
    changes = (
        f"CMD {json.dumps(['/bin/sh', '-c', SERVES])}",
        f"ENV PATH={programs}:/bin",
        "ENV TZ=UTC",
        "VOLUME /data",
    )
    store.run("import", "--quiet", *(f"--change={each}" for each in changes), str(archive), POSTGRESQL)
    archive.unlink()
