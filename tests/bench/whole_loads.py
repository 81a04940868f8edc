"""Measures both services by `solstice load`, on any broker and its usual store."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.claiming import postgresql_places
from tests.bench.servers import BenchEmbedded, BenchServer
from tests.bench.services import services

REAL_SLOTS: Final = 4
SCRIPTED_SLOTS: Final = 64
_PROGRAM: Final = "from solstice_cli.main import main; main()"
SEED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLoads:
    """The reports of two loads, as `solstice load --json` prints them."""

    store: str
    mix: Mapping[str, Any]
    """The usual mix of real jobs."""
    burst: Mapping[str, Any]
    """Jobs without a process, all sent at once."""

    @property
    def summary(self) -> str:
        """The figures, for people."""
        return "\n".join(
            [
                f"store: {self.store}",
                f"mix of real jobs, {REAL_SLOTS} slots: {_shown(self.mix)}",
                f"burst of jobs without a process, {SCRIPTED_SLOTS} slots: {_shown(self.burst)}",
            ]
        )


async def measure(server: BenchServer, *, real: int, burst: int) -> WholeLoads:
    """Send so many real jobs, then a burst of jobs without a process."""
    with _database(server) as (store, settings):
        mixed = await _load(server, real, EXECUTOR="process", slots=REAL_SLOTS, **settings)
    with _database(server) as (store, settings):
        at_once = await _load(
            server, burst, "--mix", "noop=1", EXECUTOR="scripted", slots=SCRIPTED_SLOTS, **settings
        )
    return WholeLoads(store=store, mix=mixed, burst=at_once)


@contextmanager
def _database(server: BenchServer) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the name of the store beside a broker, and the settings that choose it."""
    if isinstance(server, BenchEmbedded):
        yield "SQLite", {}
        return
    with postgresql_places() as new_database:
        yield "PostgreSQL", {"DATABASE_URL": new_database()}


async def _load(
    server: BenchServer, requests: int, *words: str, slots: int, **settings: str
) -> Mapping[str, Any]:
    with server.vhost() as vhost, tempfile.TemporaryDirectory() as name:
        home = Path(name)
        async with services(vhost.url, home, slots=slots, **settings) as running:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, "load", "--json"),
                *("-n", str(requests), "--seed", str(SEED), *words),
                env={
                    **os.environ,
                    "AMQP_URL": vhost.url,
                    "SOLSTICE_HOME": name,
                    "SOLSTICE_URL": running.orchestrator_url,
                },
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                printed, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    if process.returncode:
        raise RuntimeError(f"'solstice load' ended with {process.returncode}: {printed.decode()}")
    report: Mapping[str, Any] = json.loads(printed)
    return report


def _shown(report: Mapping[str, Any]) -> str:
    stops = {stop["stop"]: stop for stop in report["stops"]}
    p95 = ", ".join(f"{name} {stops[name]['p95']:.2f} s" for name in stops)
    return (
        f"{report['ended']} ended, {report['ended'] / report['run_seconds']:.0f}/s; "
        f"accepted at {report['accepted'] / report['send_seconds']:,.0f}/s; retried {report['retried']}; "
        f"lost {report['lost']}, duplicated {report['duplicated']}, wrong {report['wrong']}; p95: {p95}; "
        f"whole p50 {stops['whole']['p50']:.2f} s"
    )
