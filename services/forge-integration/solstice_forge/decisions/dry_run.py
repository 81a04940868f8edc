"""Shows what an event would do, without publishing or writing anything. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_forge.decisions.requests import kind_of
from solstice_forge.decisions.rules import IMPLICIT_RULE, Rule, RuleSubject, Ruling, decide, is_for
from solstice_forge.decisions.ruling import ruling, subject_of
from solstice_forge.decisions.sources import FORGES, WebhookSource, how_to_configure
from solstice_forge.decisions.stored_delivery import what_follows
from solstice_forge.decisions.triage import Refused, triage
from solstice_forge.forges.bodies import payload_of
from solstice_forge.forges.events import Command, CommandKind, Event, Ignored, Malformed, lacks
from solstice_forge.forges.protocol import Unsupported


def read_headers(text: str) -> dict[str, str]:
    """Read headers from a JSON object or from lines `Name: value`.

    The names come out as a server would give them. Raises ConfigurationError that names the wrong line.
    """
    if text.lstrip().startswith("{"):
        return {name.lower(): _on_the_wire(value) for name, value in _from_json(text).items()}
    headers = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, colon, value = line.partition(":")
        if line.strip() and not (colon and name.strip()):
            raise ConfigurationError(f"--headers, line {number}: must be 'Name: value'")
        if line.strip():
            headers[name.strip().lower()] = _on_the_wire(value.strip())
    return headers


def source_named(name: str, configured: Mapping[str, WebhookSource], *, verify: bool) -> WebhookSource:
    """Return the source to check against; without `verify`, also one without a secret here."""
    if name in configured:
        return configured[name]
    if not verify and name in set(FORGES):
        return WebhookSource(name=name, forge=FORGES[Source(name)], secrets=())
    hint = ", or leave the signature out with --no-verify" if verify else ""
    raise ConfigurationError(f"--source {name}: {how_to_configure(name)}{hint}")


def check(
    source: WebhookSource, headers: Mapping[str, str], body: bytes, *, now: float, verify: bool
) -> dict[str, Any]:
    """Return the answer to a first delivery, and the request that would be published.

    The answer is that of `POST /webhooks/{source}`.
    """
    understood = triage(source, headers, body, now=now, verify=verify)
    if isinstance(understood, Refused):
        genuine = False if understood.reason == "bad_signature" else None
        return {
            "status": understood.status,
            "genuine": genuine,
            "decision": "refused",
            "reason": understood.reason,
            "detail": understood.detail,
            "request": None,
        }
    event, planned = understood.event, understood.planned
    ignored = isinstance(event, Ignored)
    return {
        "status": 200 if ignored else 202,
        "genuine": True if verify else None,
        "decision": "ignored" if ignored else "accepted",
        "reason": event.reason.value if isinstance(event, Ignored) else kind_of(event),
        "detail": event.detail if isinstance(event, Ignored) else _still_lacking(event),
        "delivery_id": understood.delivery_id,
        "event": understood.event_name,
        "request": None if planned is None else orjson.loads(planned.body),
    }


def _still_lacking(event: Event) -> str:
    """Say what must be looked up before an accepted delivery becomes a request."""
    needs = ", ".join(need.value for need in lacks(event))
    if isinstance(event, Command) and event.word is CommandKind.CANCEL:
        what = what_follows(event)
        return f"{what}, once the forge was asked for: {needs}" if needs else what
    return f"the request follows once the forge was asked for: {needs}" if needs else ""


def explain(source: WebhookSource, subject: RuleSubject, paths: Collection[str]) -> dict[str, Any]:
    """Return what the source's rules say about a described event; empty `paths` are unknown."""
    return _explained(source, subject, decide(subject, source.rules, lambda: paths or None))


def explain_delivery(source: WebhookSource, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return what the rules say about a recorded delivery, without a check of its signature.

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


def described(source: WebhookSource) -> dict[str, Any]:
    """Return a description of a source without its secrets."""
    credentials = "app" if source.app else "token" if source.token else None
    return {
        "source": source.name,
        "webhooks": f"/webhooks/{source.name}",
        "forge": source.forge.SOURCE.value,
        "url": source.url,
        "secrets": len(source.secrets),
        "credentials": credentials,
        "rules": len(source.rules),
    }


def _from_json(text: str) -> dict[str, str]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"--headers: this is no JSON object: {error}") from None
    if not all(isinstance(value, str) for value in document.values()):
        raise ConfigurationError("--headers: every value must be a string")
    return dict(document)


def _on_the_wire(value: str) -> str:
    return value.encode().decode("latin-1")


def _explained(source: WebhookSource, subject: RuleSubject | None, ruled: Ruling | Ignored) -> dict[str, Any]:
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
            "rules": _steps(source.rules or (IMPLICIT_RULE,), subject),
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
        steps.append({"rule": rule.name, "says": _description(rule, subject)})
        if is_for(rule, subject):
            break
    return steps


def _description(rule: Rule, subject: RuleSubject) -> str:
    if is_for(rule, subject):
        return "decides"
    if subject.event not in rule.events:
        return f"is not for the event {subject.event.value}"
    return f"is not for the repository {subject.repository}"
