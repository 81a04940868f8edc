"""Prints workers, and the demand for their slots."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from solstice_cli.output.display import print_rows
from solstice_common.cli.api_client import Document


def print_workers(workers: Sequence[Document], *, now: datetime) -> None:
    """Print one line per worker, in the order given."""
    print_rows(
        ("WORKER", "STATE", "RUNS", "SLOTS", "HOST", "VERSION", "SEEN", "PRESSURE"),
        [
            (
                worker["worker_id"],
                worker_state(worker),
                str(len(worker["jobs"])),
                slots(worker),
                worker["host"],
                worker["version"],
                worker["seen_at"],
                pressure(worker),
            )
            for worker in workers
        ],
        now=now,
        nothing="No workers. Start one with 'solstice up' or 'orchestrator run'.",
    )


def print_scale(labels: Mapping[str, Document], *, now: datetime) -> None:
    """Print one line per label."""
    print_rows(
        ("LABEL", "WAITING", "RUNNING", "SLOTS", "WANTED", "WORK", "OLDEST", "HELD BACK", "DELAYED"),
        [
            (
                label,
                str(demand["waiting"]),
                str(demand["running"]),
                str(demand["slots"]),
                str(demand["wanted_slots"]),
                str(demand["expected_work_seconds"]),
                str(demand["oldest_wait_seconds"]),
                limited_by(demand),
                str(demand["delayed"]),
            )
            for label, demand in labels.items()
        ],
        now=now,
        nothing="No work and no workers: no label has waiting or running jobs, or slots.",
    )


def limited_by(demand: Document) -> str:
    """Return the jobs that more slots would not help: `blocked=3,approval=1`; empty for none."""
    return ",".join(f"{why}={count}" for why, count in demand["held_back"].items() if count)


def worker_state(worker: Document) -> str:
    """Return the state or presence of a worker: `active`, `quarantined`, `lost`."""
    return str(worker["state"] if worker["presence"] == "alive" else worker["presence"])


def slots(worker: Document) -> str:
    """As `CAPACITY_MAP` writes them: `linux=4,illumos=1`."""
    return ",".join(f"{label}={count}" for label, count in sorted(worker["slots"].items()))


def pressure(worker: Document) -> str:
    """Say why a worker uses fewer than its slots; empty without pressure.

    `disk` (which it lacks), `2 at once`, or both.
    """
    shrunk = worker.get("shrunk_to")
    return ", ".join(filter(None, [worker.get("refuses"), None if shrunk is None else f"{shrunk} at once"]))
