"""The schemas of the statuses for forges, one for each database."""

from collections.abc import Mapping
from typing import Final

TABLES: Final[Mapping[str, str]] = {
    "statuses": "The newest status of each context of each commit, and how far its forge has it.",
    "dead_letters": "Statuses that a forge will never accept, until the dead-letter queue has them.",
    "limits": "What is known of the rate limits of each source's forge.",
    "schema_migrations": "The migrations that were applied to this database.",
}
"""What each table holds; the page of the database shows it."""
