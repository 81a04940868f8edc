"""The schemas of the inbox, one for each database."""

from collections.abc import Mapping
from typing import Final

TABLES: Final[Mapping[str, str]] = {
    "deliveries": "The webhook deliveries that arrived, with the decision about each.",
    "requests": "What deliveries ask for, and whether the broker has confirmed it.",
    "request_traces": "Published requests whose spans no OpenTelemetry collector has taken yet.",
    "aliases": "Other content keys of a request: another hook may describe the same push with one of these.",
    "repeats": "Copies of deliveries that were stored before.",
    "lookups": "Deliveries that wait for an answer of their forge before they become requests.",
    "sweep_cursor": "Its one row says up to which delivery old bodies were removed.",
    "reconcile_cursor": "Its one row says up to which delivery reconciling has learned what each repository sends.",
    "reconcile_kinds": "Which kinds of events each repository has sent.",
    "reconcile_heads": "The newest known commit of each ref, to compare with the forge.",
    "reconcile_hooks": "Up to which time the forge's own list of deliveries was read, for each hook.",
    "reconcile_resends": "How often the forge was told to send a delivery again.",
    "reconcile_rounds": "Which process reconciles each source, and the report of the last round.",
    "schema_migrations": "The migrations that were applied to this database.",
}
"""What each table holds; the page of the database shows it."""
