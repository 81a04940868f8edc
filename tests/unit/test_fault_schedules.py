"""The full chaos run lets every fault happen to every broker that can have it."""

import pytest

from tests.chaos.faults.brokers import (
    BrokerUnderFaults,
    ClusterUnderFaults,
    EmbeddedUnderFaults,
    NatsUnderFaults,
    RabbitMQUnderFaults,
    RedisUnderFaults,
)
from tests.chaos.faults.schedule import OF_CLUSTERS, OF_SERVICES, Fault, draw

SERVERS = (RabbitMQUnderFaults, RedisUnderFaults, NatsUnderFaults)
SEEDS = 5
STEPS = 500 // 50
"""Those of `CHAOS_SCHEDULES=5 CHAOS_JOBS=500`."""


@pytest.mark.parametrize("broker", [*SERVERS, EmbeddedUnderFaults, ClusterUnderFaults])
def test_each_fault_of_a_broker_happens_to_it_in_the_full_run(broker: type[BrokerUnderFaults]) -> None:
    happened = {step.fault for seed in range(SEEDS) for step in draw(seed, broker.faults, steps=STEPS)}
    assert happened == broker.faults


def test_every_server_has_every_fault_of_one_node() -> None:
    assert {broker.faults for broker in SERVERS} == {frozenset(Fault) - OF_CLUSTERS}
    assert EmbeddedUnderFaults.faults == OF_SERVICES
    assert ClusterUnderFaults.faults > OF_CLUSTERS


def test_a_schedule_is_that_of_its_seed() -> None:
    assert draw(7, list(Fault), steps=20) == draw(7, list(Fault), steps=20) != draw(8, list(Fault), steps=20)
    assert {step.fault for step in draw(7, list(Fault), steps=len(Fault))} == set(Fault)
