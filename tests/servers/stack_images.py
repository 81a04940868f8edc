"""Makes images for the stack from a Debian 13 of this machine, without a registry."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install
from tests.servers.nats_server import nats_server
from tests.servers.newer_debian import newer_debian
from tests.servers.podman import PodmanStore, configured_store

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "localhost/solstice-debian-13:1"
RABBITMQ: Final = "localhost/solstice-rabbitmq:4"
POSTGRESQL: Final = "localhost/solstice-postgresql:17"
REDIS: Final = "localhost/solstice-redis:8"
NATS: Final = "localhost/solstice-nats:2"
PROMETHEUS: Final = "localhost/solstice-prometheus:2"
PACKAGES: Final = (
    *("python3", "git", "openssh-client"),
    *("rabbitmq-server", "postgresql-17", "redis-server", "prometheus"),
    # Healthchecks of images without one's own program for that.
    "wget",
)
LEFT_OUT: Final = ("var/cache", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
NETWORK: Final = ("netavark", "aardvark-dns")
"""Give the containers of a network names, by which they find each other."""

_SERVERS: Final = f"""
FROM {BASE} AS rabbitmq
RUN printf '#!/bin/sh\\nexec "$@"\\n' > /usr/local/bin/docker-entrypoint.sh && chmod 755 /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/lib/rabbitmq/bin:$PATH RABBITMQ_LOGS=- HOME=/var/lib/rabbitmq
USER rabbitmq
VOLUME /var/lib/rabbitmq
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["rabbitmq-server"]

FROM {BASE} AS postgresql
COPY postgresql.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/lib/postgresql/17/bin:$PATH PGDATA=/var/lib/postgresql/data
RUN mkdir -p $PGDATA && chown postgres:postgres $PGDATA
USER postgres
VOLUME /var/lib/postgresql/data
CMD ["sh", "-e", "/usr/local/bin/docker-entrypoint.sh"]

FROM {BASE} AS redis
RUN mkdir /data && chown redis:redis /data && rm -rf /etc/redis
VOLUME /data

FROM {BASE} AS nats
COPY nats-server /usr/local/bin/nats-server

FROM {BASE} AS prometheus
RUN mkdir /prometheus && chown 65534:65534 /prometheus && rm -rf /etc/prometheus
VOLUME /prometheus
WORKDIR /prometheus
CMD ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""
_SERVER_IMAGES: Final = {
    "rabbitmq": RABBITMQ,
    "postgresql": POSTGRESQL,
    "redis": REDIS,
    "nats": NATS,
    "prometheus": PROMETHEUS,
}
IMAGES: Final = {f"STACK_{name.upper()}_IMAGE": image for name, image in _SERVER_IMAGES.items()}
"""The variables by which the stack takes these images."""
_POSTGRESQL: Final = """
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb -U "$POSTGRES_USER" --auth-local=trust --auth-host=scram-sha-256 --pwfile="$POSTGRES_PASSWORD_FILE" --encoding=UTF8 --locale=C
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp
"""


def stack_store(folder: Path) -> PodmanStore:
    """Configure a store whose containers find each other by name."""
    if apt_can_install() and not all(Path("/usr/lib/podman", name).exists() for name in NETWORK):
        apt_install(*NETWORK)
    store = configured_store(folder)
    configuration = folder / "containers.conf"
    # Without the right to raise limits (CAP_SYS_RESOURCE) they have to be named.
    limits = '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
    network = f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{folder}/networks"\n'
    configuration.write_text(limits + network + configuration.read_text())
    # Other stores keep to CNI, whose networks have no names.
    (folder / "graph").mkdir(exist_ok=True)
    (folder / "graph" / "defaultNetworkBackend").write_text("netavark")
    return store


def make_base(store: PodmanStore) -> None:
    """Import the Debian with Python, git and the servers; uv is ours."""
    root = newer_debian(*PACKAGES)
    archive = store.folder / "base.tar"
    left_out = [f"--exclude=./{each}/*" for each in (*LEFT_OUT, "proc", "sys", "dev")]
    tools = store.folder / "usr/local/bin"
    tools.mkdir(parents=True)
    shutil.copy2(ROOT / ".tools/bin/uv", tools / "uv")
    subprocess.run(["tar", "-C", root, *left_out, "-cf", archive, "."], check=True)
    subprocess.run(["tar", "-C", store.folder, "-rf", archive, "./usr/local/bin/uv"], check=True)
    store.run("import", "--quiet", str(archive), BASE)
    archive.unlink()


def make_services(store: PodmanStore, tag: str) -> None:
    """Build our images with `./just images`, from uv's cache and without a network."""
    cache = subprocess.run(
        [ROOT / ".tools/bin/uv", "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(
        [ROOT / "just", "images"],
        env={
            **os.environ,
            **store.environment,
            "STACK_ENGINE": "podman",
            "STACK_TAG": tag,
            "BASE": BASE,
            "STACK_BUILD_OPTIONS": (
                f"--network=none --pull=never --build-arg=UV_OFFLINE=1 --volume={cache}:/root/.cache/uv:O"
            ),
        },
        check=True,
    )


def make_servers(store: PodmanStore) -> None:
    """Build images that stand in for the official ones of all servers but Grafana."""
    folder = store.folder / "servers"
    folder.mkdir()
    (folder / "Containerfile").write_text(_SERVERS)
    (folder / "postgresql.sh").write_text(_POSTGRESQL)
    shutil.copy2(nats_server(), folder)
    for name, tag in _SERVER_IMAGES.items():
        store.run("build", "--quiet", "--pull=never", "--target", name, "-t", tag, str(folder))
