"""Simulates how checkouts at once follow steps in speed and depth.

The decision is that of the services. `./just docs` writes the table into the page about capacity.
"""

from dataclasses import dataclass, field
from typing import Final

from solstice_orchestrator.scheduling.start_window import StartWindow, TimedCheckout, after_checkout
from tests.markdown import table

START_SECONDS: Final = 2.0
MOST: Final = 32
"""What slots and GOVERNOR allow."""
SIDE_BY_SIDE: Final = 4
"""So many checkouts do not slow each other down; more share the machine."""
STEP: Final = 0.05
SLOW: Final = (120.0, 240.0)
"""From when to when a checkout takes three times as long."""
EMPTY: Final = 300.0
"""From then on no job waits, but one comes each second."""
END: Final = 360.0
SHOWN: Final = (1, 5, 20, 60, 119, 122, 130, 200, 239, 245, 299, 360)


def alone_seconds(at: float) -> float:
    """How long a checkout takes on the idle machine."""
    return 1.5 if SLOW[0] <= at < SLOW[1] else 0.5


def fitting(at: float) -> float:
    """At how many at once a checkout takes START_SECONDS."""
    return SIDE_BY_SIDE * START_SECONDS / alone_seconds(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMoment:
    """A step of the simulation."""

    at: float
    window: int
    took: float
    """How long the last checkout took."""
    ended: int
    """Checkouts since the beginning."""


@dataclass(kw_only=True)
class Machine:
    """A machine that shares itself between the checkouts, and a queue of jobs."""

    window: StartWindow = field(default_factory=StartWindow)
    running: list[tuple[float, float]] = field(default_factory=list)
    """When each checkout began, and the share of it that is left."""
    took: float = 0.0
    ended: int = 0
    at: float = 0.0

    def step(self) -> StartMoment:
        """Let STEP seconds pass."""
        self.at += STEP
        jobs_wait = self.at < EMPTY
        done = STEP * min(1.0, SIDE_BY_SIDE / max(1, len(self.running))) / alone_seconds(self.at)
        at_once = len(self.running)
        self.running = [(begun, left - done) for begun, left in self.running]
        for begun, left in tuple(self.running):
            if left > 0:
                continue
            self.running.remove((begun, left))
            self.took, self.ended = self.at - begun, self.ended + 1
            self.window = after_checkout(
                self.window,
                TimedCheckout(seconds=self.took, at_once=at_once, succeeded=True, jobs_wait=jobs_wait),
                target_seconds=START_SECONDS,
                most=MOST,
                now=self.at,
            )
        is_due = jobs_wait or round(self.at / STEP) % round(1 / STEP) == 0
        most = self.window.at_once if jobs_wait else int(is_due)
        self.running += [(self.at, 1.0)] * max(0, min(self.window.at_once, most) - len(self.running))
        return StartMoment(at=self.at, window=self.window.at_once, took=self.took, ended=self.ended)


def start_response() -> list[StartMoment]:
    """Return every step, from an idle worker on."""
    machine = Machine()
    return [machine.step() for _ in range(round(END / STEP))]


def start_response_table() -> str:
    """Return the table of the page."""
    moments = start_response()
    rows = []
    for second in SHOWN:
        now = moments[round(second / STEP) - 1]
        since = moments[max(0, round((second - 5) / STEP) - 1)]
        rows.append(
            (
                str(second),
                f"{alone_seconds(now.at):g} s",
                "no" if now.at >= EMPTY else "yes",
                str(now.window),
                f"{now.took:.1f} s",
                f"{(now.ended - since.ended) / (now.at - since.at if now.at > since.at else 1):.1f}",
            )
        )
    return table(
        ("second", "a checkout alone takes", "jobs wait", "at once", "the last took", "checkouts a second"),
        rows,
    )
