"""The report of comparing one source with its forge. Pure.

People, programs and the page read it.
"""

from dataclasses import dataclass, field

import msgspec

from solstice_common.values.quantities import quantity
from solstice_common.values.value import Value


class ResentDelivery(Value, frozen=True, kw_only=True):
    """A delivery that the forge was (or would have been) asked to send again."""

    place: str
    delivery_id: str
    event: str
    failure: str
    """The forge's description of its last attempt."""
    times: int
    """Including this one."""


class MissedHead(Value, frozen=True, kw_only=True):
    """A head without a webhook, and what was (or would have been) done."""

    repository: str
    ref: str
    commit_sha: str
    decision: str
    """`accepted`, `duplicate`, or `ignored`: the rules do not build it."""
    reason: str
    delivery_id: str | None = None
    request_ids: tuple[str, ...] = ()


class ReconcileProblem(Value, frozen=True, kw_only=True):
    """A part that could not be compared, and the reason."""

    place: str
    detail: str


class ReconcileReport(Value, frozen=True, kw_only=True):
    """One comparison of one source."""

    source: str
    dry_run: bool
    repositories: int
    """How many were compared."""
    sent: tuple[ResentDelivery, ...] = ()
    made: tuple[MissedHead, ...] = ()
    baseline: int = 0
    """Heads that were seen for the first time, and are only remembered."""
    waiting: int = 0
    """Deliveries that the forge was asked for recently and that did not come yet."""
    given_up: tuple[str, ...] = ()
    """Ids of deliveries that the forge was asked for often enough."""
    troubles: tuple[ReconcileProblem, ...] = ()

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


@dataclass(slots=True)
class ReconcileFindings:
    """A report while it is being made."""

    repositories: int = 0
    sent: list[ResentDelivery] = field(default_factory=list)
    made: list[MissedHead] = field(default_factory=list)
    baseline: int = 0
    waiting: int = 0
    given_up: list[str] = field(default_factory=list)
    troubles: list[ReconcileProblem] = field(default_factory=list)

    def report(self, source: str, *, dry_run: bool) -> ReconcileReport:
        return ReconcileReport(
            source=source,
            dry_run=dry_run,
            repositories=self.repositories,
            sent=tuple(self.sent),
            made=tuple(self.made),
            baseline=self.baseline,
            waiting=self.waiting,
            given_up=tuple(self.given_up),
            troubles=tuple(self.troubles),
        )


def decode_report(stored: bytes) -> ReconcileReport | None:
    """Read what `ReconcileReport.encoded` wrote; None for another version's."""
    try:
        return msgspec.json.decode(stored, type=ReconcileReport)
    except msgspec.DecodeError:
        return None


def sentence(report: ReconcileReport) -> str:
    """Return one line: `12 repositories: 2 deliveries asked for again, 1 run made, 1 problem`."""
    would = "to be " if report.dry_run else ""
    accepted = sum(each.decision == "accepted" for each in report.made)
    parts = [
        (len(report.sent), f"{_deliveries(len(report.sent))} {would}asked for again"),
        (accepted, f"{quantity(accepted, 'missed head')} {would}built"),
        (report.baseline, f"{report.baseline} met for the first time, not built"),
        (report.waiting, f"{_deliveries(report.waiting)} asked for before and not here yet"),
        (len(report.given_up), f"{_deliveries(len(report.given_up))} given up"),
        (len(report.troubles), quantity(len(report.troubles), "problem")),
    ]
    summary = ", ".join(text for count, text in parts if count) or "nothing was missed"
    return f"{quantity(report.repositories, 'repository', 'repositories')}: {summary}"


def _deliveries(count: int) -> str:
    return quantity(count, "delivery", "deliveries")
