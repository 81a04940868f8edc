"""What is unused or too much goes, untrusted runs' first."""

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.trust import CacheScope
from solstice_orchestrator.worker.caches.cache_entries import CacheEntry, CachePlace, UsedEntry
from solstice_orchestrator.worker.caches.cache_limits import CacheLimits, no_room, superfluous

MIB = 1024**2
NOW = 1000.0


def entry(
    number: int, size: int, used_at: float, *, repository: str = "a", trusted: bool = True
) -> UsedEntry:
    scope = CacheScope(is_trusted=trusted, name="")
    place = CachePlace(repository=repository, scope=scope, system="s", cache="c", paths=("p",))
    return UsedEntry(
        entry=CacheEntry(
            place=place,
            key=f"c-{number}",
            digest=f"{number:064x}",
            size=size,
            content_bytes=size,
            files=1,
            created_at=0.0,
            job_id="j",
        ),
        used_at=used_at,
    )


ENTRIES = st.lists(
    st.builds(
        lambda size, used_at, repository, trusted: (size, used_at, repository, trusted),
        st.integers(0, 40),
        st.sampled_from([float(each) for each in range(900, 1001, 10)]),
        st.sampled_from("ab"),
        st.booleans(),
    ),
    max_size=12,
).map(
    lambda rows: [
        entry(number, size * MIB, used_at, repository=repository, trusted=trusted)
        for number, (size, used_at, repository, trusted) in enumerate(rows)
    ]
)
LIMITS = st.builds(
    CacheLimits,
    repository_bytes=st.sampled_from([0, 30 * MIB, 60 * MIB]),
    all_bytes=st.sampled_from([0, 50 * MIB, 100 * MIB]),
    unused_seconds=st.sampled_from([0.0, 50.0]),
)


@given(ENTRIES, LIMITS)
def test_what_stays_fits_and_nothing_goes_without_a_reason(
    entries: list[UsedEntry], limits: CacheLimits
) -> None:
    gone = {each.name for each in superfluous(entries, limits, NOW)}
    stays = [used for used in entries if used.entry.name not in gone]
    for repository in "ab":
        size = sum(used.entry.size for used in stays if used.entry.place.repository == repository)
        assert size <= limits.repository_bytes or not limits.repository_bytes
    assert sum(used.entry.size for used in stays) <= limits.all_bytes or not limits.all_bytes
    assert not limits.unused_seconds or all(used.used_at >= NOW - limits.unused_seconds for used in stays)
    if limits == CacheLimits(most_bytes=limits.most_bytes):
        assert not gone


@given(ENTRIES, LIMITS, st.integers(0, 120), st.sampled_from("ab"))
def test_what_an_untrusted_run_saves_takes_nothing_from_trusted_ones(
    entries: list[UsedEntry], limits: CacheLimits, mib: int, repository: str
) -> None:
    fit = {each.name for each in superfluous(entries, limits, NOW)}
    before = [used for used in entries if used.entry.name not in fit]
    if no_room(before, limits, repository, size=mib * MIB, is_trusted=False):
        return
    added = entry(99, mib * MIB, NOW, repository=repository, trusted=False)
    gone = superfluous([*before, added], limits, NOW)
    assert not any(each.place.scope.is_trusted for each in gone)
    assert added.entry not in gone or len(gone) > 0


def test_the_least_recently_used_goes_and_what_has_just_come_stays() -> None:
    entries = [entry(1, 10 * MIB, 950.0), entry(2, 10 * MIB, 940.0), entry(3, 25 * MIB, 900.0)]
    limits = CacheLimits(repository_bytes=40 * MIB)
    assert [each.key for each in superfluous(entries, limits, NOW)] == ["c-3"]
    assert [each.key for each in superfluous(entries, limits, NOW, entries[2].entry.name)] == ["c-2"]
    limits = CacheLimits(all_bytes=20 * MIB)
    stranger = entry(4, 10 * MIB, NOW, repository="b", trusted=False)
    assert [each.key for each in superfluous([*entries[:2], stranger], limits, NOW)] == ["c-4"]


def test_what_can_never_fit_is_not_stored() -> None:
    limits = CacheLimits(repository_bytes=40 * MIB, all_bytes=60 * MIB)
    assert no_room([], limits, "a", size=40 * MIB, is_trusted=True) is None
    assert "40 MiB (CACHE_REPOSITORY_MIB)" in (no_room([], limits, "a", size=41 * MIB, is_trusted=True) or "")
    assert "60 MiB (CACHE_DISK_MIB)" in (
        no_room([entry(1, 30 * MIB, 0.0)], limits, "b", size=31 * MIB, is_trusted=False) or ""
    )
