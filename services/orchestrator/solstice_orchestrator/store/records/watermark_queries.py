"""Writes the queries for watermarks, as both databases read them. Pure."""

from dataclasses import dataclass
from typing import Final

PUSHES_SHOWN: Final = 10
"""How many pending pushes of a ref a watermark lists; it counts all."""

_CHOSEN: Final = (
    "repository = coalesce({}1, repository) AND ref = coalesce({}2, ref) AND (repository, ref) > ({}3, {}4)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkQueries:
    """The queries of one database.

    Their first four values are the wanted repository and ref, each or null, and the repository and ref behind which
    the page begins.
    """

    mark: str
    """What stands before the number of a value: `?` or `$`."""
    requests: str
    """The table with the index of pushes."""
    runs: str
    """What has requests and runs in one row."""
    pending: str
    """What is true of a pending push."""
    open_pushes: str
    """The tables and conditions that find all pending pushes among what is not finished."""

    def refs(self, limit: int, *, of_repository: bool) -> str:
        """Return the query for refs that have a push, by name; perhaps of one repository.

        It looks up each in the index, behind the last one, instead of reading all pushes.
        """
        # Each needs a condition that begins where the index begins. PostgreSQL must find the type of each value, also of
        # one that decides nothing: those are cast.
        further = (
            f"repository = {self.mark}1 AND ref > {{1}}"
            if of_repository
            else f"CAST({self.mark}1 AS TEXT) IS NULL AND (repository, ref) > ({{0}}, {{1}})"
        )
        first = further.format(f"{self.mark}3", f"{self.mark}4")
        return (
            f"WITH RECURSIVE refs (repository, ref) AS (SELECT repository, ref FROM {self.requests}"  # noqa: S608  made of constants
            f" WHERE run_id = ({self._first_push(first)}) UNION ALL"
            f" SELECT next.repository, next.ref FROM refs JOIN {self.requests} AS next"
            f" ON next.run_id = ({self._first_push(further.format('refs.repository', 'refs.ref'))}))"
            f" SELECT repository, ref FROM refs WHERE ref = coalesce({self.mark}2, ref)"
            f" AND CAST({self.mark}3 AS TEXT) IS NOT NULL LIMIT {limit:d}"
        )

    def _first_push(self, where: str) -> str:
        return (
            f"SELECT run_id FROM {self.requests} AS pushes WHERE pushed_at IS NOT NULL AND {where}"  # noqa: S608  made of constants
            " ORDER BY repository, ref, run_id LIMIT 1"
        )

    def refs_behind(self, limit: int) -> str:
        """Return the same query for refs with a pending push behind their watermark."""
        chosen = _CHOSEN.replace("{}", self.mark)
        return f"{self._behind} SELECT repository, ref FROM behind WHERE {chosen} ORDER BY repository, ref LIMIT {limit:d}"  # noqa: S608  made of constants

    @property
    def lag(self) -> str:
        """The query for how many refs are behind, and since when the first is."""
        return f"{self._behind} SELECT count(*) AS refs, min(oldest) AS oldest FROM behind"  # noqa: S608  made of constants

    @property
    def _behind(self) -> str:
        # Of each ref, pushes are read from the newest to the first that has ended, and those behind it once more. Each
        # step is a look into an index, so that PostgreSQL needs no join of all with all.
        of_ref = "FROM {} WHERE pushed_at IS NOT NULL AND repository = {}.repository AND ref = {}.ref"
        ended = f"{of_ref.format(self.runs, 'refs', 'refs')} AND finished_at IS NOT NULL"
        later = (
            f"{of_ref.format(self.runs, 'marked', 'marked')} AND run_id > marked.handled AND {self.pending}"
        )
        return (
            f"WITH refs AS MATERIALIZED (SELECT DISTINCT repository, ref {self.open_pushes}),"  # noqa: S608  made of constants
            " marked AS MATERIALIZED (SELECT repository, ref,"
            f" coalesce((SELECT run_id {ended} ORDER BY run_id DESC LIMIT 1), '') AS handled FROM refs),"
            f" behind AS (SELECT repository, ref, oldest FROM (SELECT repository, ref, (SELECT min(pushed_at) {later}) AS oldest"
            " FROM marked) AS found WHERE oldest IS NOT NULL)"
        )
