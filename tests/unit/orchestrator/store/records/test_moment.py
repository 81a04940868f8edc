"""The rules of a store, and the moment of a change."""

import inspect
import random
from dataclasses import MISSING, fields

from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.store import open_store
from solstice_orchestrator.store.records.moment import Moment, StoreRules

RNG = random.Random(1)
RULES = StoreRules(new_id=id_source(RNG), rng=RNG)


def test_a_store_that_is_opened_without_more_follows_the_rules_that_hold_without_more() -> None:
    of_rules = {each.name: each.default for each in fields(StoreRules) if each.default is not MISSING}
    of_stores = {each.name: each.default for each in inspect.signature(open_store).parameters.values()}
    shared = of_rules.keys() & of_stores.keys()
    assert {name: of_rules[name] for name in shared} == {name: of_stores[name] for name in shared}
    assert len(shared) == 7


def test_without_more_nothing_but_slots_limits_starts() -> None:
    limits = RULES.limits
    assert not any((limits.caps.any, limits.quotas.any, limits.rates.any))


def test_a_moment_has_one_time_and_ever_greater_ids() -> None:
    moment = Moment(60.0, RULES)
    assert moment.stamp == "1970-01-01T00:01:00.000Z"
    first, second, later = moment.new_id(), moment.new_id(), Moment(61.0, RULES).new_id()
    assert first < second < later
