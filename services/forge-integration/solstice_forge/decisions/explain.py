"""`rules check`: which rule decides about an event, and why earlier rules do not. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from solstice_common.errors import ConfigurationError
from solstice_forge.decisions.rules import NO_RULES_SAID, Rule, RuleSubject, Ruling, decide, is_for
from solstice_forge.decisions.ruling import ruling, subject_of
from solstice_forge.decisions.sources import Source
from solstice_forge.forges.bodies import payload_of
from solstice_forge.forges.events import Ignored, Malformed
from solstice_forge.forges.protocol import Unsupported


def explain(source: Source, subject: RuleSubject, paths: Collection[str]) -> dict[str, Any]:
    """Return what the source's rules say about a described event; empty `paths` are unknown."""
    return _explained(source, subject, decide(subject, source.rules, lambda: paths or None))


def explain_delivery(source: Source, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the same for a recorded delivery, whose signature is not checked.

    Raises ConfigurationError when the delivery cannot be read.
    """
    payload = payload_of(headers, body)
    name = source.forge.event_name(headers)
    if isinstance(payload, Unsupported) or name is None:
        what = payload.detail if isinstance(payload, Unsupported) else "the event's name is missing"
        raise ConfigurationError(f"--headers: {what}; are these headers of a {source.forge.SOURCE}?")
    event = source.forge.parse(name, payload)
    if isinstance(event, Malformed):
        raise ConfigurationError(f"--delivery: this {name} cannot be used: {event.detail}")
    if isinstance(event, Ignored):
        return _explained(source, None, event)
    return _explained(source, subject_of(event), ruling(event, source, payload))


def _explained(source: Source, subject: RuleSubject | None, ruled: Ruling | Ignored) -> dict[str, Any]:
    explained: dict[str, Any] = {
        "source": source.name,
        "repository": ruled.repo_full_name if isinstance(ruled, Ignored) else None,
        "event": None,
        "branch": None,
        "rules": [],
    }
    if subject is not None:
        explained |= {
            "repository": subject.repository,
            "event": subject.event.value,
            "branch": subject.branch,
            "rules": _steps(source.rules or (NO_RULES_SAID,), subject),
        }
    if isinstance(ruled, Ignored):
        return explained | {"decision": "ignored", "reason": ruled.reason.value, "detail": ruled.detail}
    return explained | {
        "decision": "approval" if ruled.needs_approval else "built",
        "priority": ruled.priority,
        "runs_on": ruled.runs_on,
    }


def _steps(rules: Sequence[Rule], subject: RuleSubject) -> list[dict[str, str]]:
    steps = []
    for rule in rules:
        steps.append({"rule": rule.name, "says": _says(rule, subject)})
        if is_for(rule, subject):
            break
    return steps


def _says(rule: Rule, subject: RuleSubject) -> str:
    if is_for(rule, subject):
        return "decides"
    if subject.event not in rule.events:
        return f"is not for the event {subject.event.value}"
    return f"is not for the repository {subject.repository}"
