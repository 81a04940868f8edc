"""A worker under pressure, with scripted sensors; and what real sensors measure."""

import os
from contextlib import suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from solstice_common.broker.protocol import BrokerHealth
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.scheduling.adaptive_concurrency import GROW_SECONDS
from solstice_orchestrator.scheduling.governor import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MachineLimits,
    Resource,
    SensorReading,
)
from solstice_orchestrator.scheduling.workers import WorkerPressure
from solstice_orchestrator.worker import sensors
from solstice_orchestrator.worker.pressure import FULL_SECONDS, READING_SECONDS, Governor, StartingJobs
from tests.executor_harness import NEEDS_DISKS, mounted_disk
from tests.stores import FAILED, PROVISION_ERRORED, ManualClock

LIMITS = MachineLimits(load=2.5, disk=5.0, memory=5.0, starting=2.0)


class Machine:
    """A governed worker of eight slots on a machine with one processor."""

    def __init__(self, *, adaptive: bool = True, start_seconds: float = 0.0) -> None:
        self.reading = SensorReading(load=0.1, disk_free=50.0, memory_available=50.0)
        self.clock, self.metrics = ManualClock(), Metrics()
        self.starting = StartingJobs(self.clock)
        self.governor = Governor(
            limit=8,
            limits=LIMITS,
            adaptive=adaptive,
            read=lambda: self.reading,
            starting=self.starting,
            metrics=self.metrics,
            patience_seconds=300.0,
            start_seconds=start_seconds,
            clock=self.clock,
        )

    def current(self, *, load: float = 0.1, disk_free: float = 50.0) -> WorkerPressure:
        """Let time pass, and set the sensors to these values."""
        self.clock.forward(READING_SECONDS)
        self.reading = SensorReading(load=load, disk_free=disk_free, memory_available=50.0)
        return self.governor.current()

    def gauges(self) -> dict[str, float]:
        text = self.metrics.render({}, BrokerHealth(connected=True)).decode()
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def test_a_machine_that_is_well_takes_what_it_has_slots_for() -> None:
    machine = Machine()
    assert machine.current() == WorkerPressure()
    assert machine.gauges()["solstice_slots"] == 8
    assert machine.governor.startable == 2


def test_a_busy_processor_refuses_by_name_halves_the_slots_and_gives_them_back() -> None:
    machine = Machine()
    busy = machine.current(load=2.6)
    assert (busy.refuses, busy.shrunk_to) == (Resource.LOAD, 4)
    assert "the load is 2.6" in busy.refusal
    assert machine.gauges()["solstice_governor_refusingload"] == 1
    assert machine.current(load=2.4) == WorkerPressure(shrunk_to=4)
    assert machine.gauges()["solstice_governor_refusingload"] == 0
    machine.clock.forward(GROW_SECONDS)
    assert machine.current() == WorkerPressure(shrunk_to=5)
    machine.clock.forward(3 * GROW_SECONDS)
    assert machine.current() == WorkerPressure()


def test_under_a_load_that_stays_one_job_starts_each_time_patience_runs_out() -> None:
    machine = Machine()
    machine.current(load=50.0)
    assert machine.governor.startable == 0
    machine.clock.forward(298.0)
    machine.current(load=50.0)
    assert machine.governor.startable == 0
    machine.clock.forward(2.0)
    assert machine.current(load=50.0).refuses is Resource.LOAD
    assert machine.governor.startable == 1
    machine.governor.started()
    assert machine.governor.startable == 0
    machine.clock.forward(300.0)
    assert machine.governor.startable == 1


def test_patience_starts_again_with_each_refusal() -> None:
    machine = Machine()
    machine.current(load=50.0)
    machine.clock.forward(200.0)
    machine.current(load=0.1)
    machine.current(load=50.0)
    machine.clock.forward(200.0)
    machine.current(load=50.0)
    assert machine.governor.startable == 0


def test_each_change_of_the_slots_is_reported_once() -> None:
    machine = Machine()
    with capture_logs() as logs:
        machine.governor.ended(PROVISION_ERRORED)
        machine.current()
        machine.current()
        for _ in range(4):
            machine.clock.forward(GROW_SECONDS)
            machine.current()
        machine.current()
    changes_logged = [(line["event"], line["was"], line["slots"]) for line in logs]
    assert changes_logged == [
        ("slots.shrunk", 8, 4),
        ("slots.grown", 4, 5),
        ("slots.grown", 5, 6),
        ("slots.grown", 6, 7),
        ("slots.grown", 7, 8),
    ]


def test_slots_grow_only_once_the_load_has_gone() -> None:
    """Under lasting load they went up and down between one and two every ten seconds."""
    machine = Machine()
    with capture_logs() as logs:
        for _ in range(60):
            machine.current(load=50.0)
            machine.clock.forward(2.0)
        machine.current(load=0.1)
        machine.clock.forward(GROW_SECONDS)
        machine.current(load=0.1)
    changes_logged = [(line["event"], line["was"], line["slots"]) for line in logs if "slots" in line]
    assert changes_logged == [
        ("slots.shrunk", 8, 4),
        ("slots.shrunk", 4, 2),
        ("slots.shrunk", 2, 1),
        ("slots.grown", 1, 2),
    ]


def test_a_full_disk_refuses_and_shrinks_nothing() -> None:
    full = Machine().current(disk_free=4.0)
    assert (full.refuses, full.shrunk_to) == (Resource.DISK, None)


def test_a_reading_is_good_for_a_while() -> None:
    machine = Machine()
    machine.current()
    machine.reading = SensorReading(disk_free=1.0)
    assert machine.governor.current().refuses is None
    machine.clock.forward(READING_SECONDS)
    assert machine.governor.current().refuses is Resource.DISK


def test_too_many_checkouts_refuse_until_one_has_begun() -> None:
    machine, begun = Machine(), list[int]()
    machine.starting.on_begun = lambda: begun.append(machine.starting.count)
    with machine.starting(), machine.starting():
        assert machine.current().refuses is Resource.STARTING
        assert machine.governor.startable == 0
    assert begun == [1, 0]
    assert machine.current().refuses is None


def test_checkouts_at_once_follow_their_time_while_jobs_wait_up_to_the_governors_limit() -> None:
    machine = Machine(start_seconds=2.0)
    machine.current()
    assert (machine.governor.startable, machine.gauges()["solstice_starts_at_once"]) == (1, 1)
    with machine.starting():
        assert machine.governor.startable == 0
    assert machine.governor.startable == 1, "no job waited"
    machine.governor.jobs_wait = True
    for _ in range(9):
        with machine.starting(), machine.starting():
            machine.clock.forward(1.9)
    machine.current()
    assert machine.gauges()["solstice_starts_at_once"] == 2, "as many as GOVERNOR allows"
    with machine.starting():
        machine.clock.forward(2.1)
    assert machine.governor.startable == 1


def test_a_window_that_stays_full_is_told_and_one_that_is_full_for_a_moment_is_not() -> None:
    machine = Machine(start_seconds=2.0)
    with machine.starting():
        assert machine.current().refuses is None
        assert machine.governor.startable == 0
        machine.clock.forward(FULL_SECONDS)
        pressure = machine.current()
        assert pressure.refuses is Resource.STARTING
        assert "at most 2 s (START_SECONDS)" in pressure.refusal
    assert machine.current().refuses is None


def test_a_checkout_that_fails_is_timed_and_no_longer_counted() -> None:
    machine = Machine(start_seconds=2.0)
    machine.governor.jobs_wait = True
    with suppress(OSError), machine.starting():
        raise OSError
    assert machine.starting.count == 0
    assert machine.governor.startable == 1, "a quick failure is no success"


def test_failures_of_the_world_shrink_and_those_of_jobs_do_not() -> None:
    machine = Machine()
    machine.governor.ended(FAILED)
    assert machine.current().shrunk_to is None
    machine.governor.ended(PROVISION_ERRORED)
    assert machine.current().shrunk_to == 4


def test_a_machine_that_failed_pauses_longer_each_time_and_then_tries_one_thing() -> None:
    machine, pauses = Machine(), list[float]()
    assert machine.governor.plannable(64) == 64
    for _ in range(9):
        machine.governor.machine_failed("no space left")
        machine.governor.machine_failed("a crowd is one failure")
        begun = machine.clock.now
        assert machine.current().refuses is Resource.MACHINE
        assert "no space left" in (machine.governor.unfit or "")
        assert machine.governor.plannable(64) == 0
        machine.governor.machine_worked()
        while machine.current().refuses is not None:
            machine.clock.forward(0.5)
        pauses.append(machine.clock.now - begun)
        assert machine.governor.plannable(64) == 1
        assert machine.governor.startable == 1
    assert pauses[:6] == sorted(pauses[:6])
    assert pauses[0] <= FIRST_PAUSE_SECONDS + 0.5
    assert LONGEST_PAUSE_SECONDS / 2 <= pauses[-1] <= LONGEST_PAUSE_SECONDS + 0.5
    machine.governor.ended(FAILED)
    assert machine.governor.plannable(64) == 64
    assert machine.governor.unfit is None


def test_a_full_disk_stops_planning_and_load_does_not() -> None:
    machine = Machine()
    machine.current(load=99.0)
    assert machine.governor.plannable(8) == 8
    machine.clock.forward(READING_SECONDS)
    machine.current(disk_free=1.0)
    assert machine.governor.plannable(8) == 0


def test_who_does_not_want_it_keeps_all_slots() -> None:
    machine = Machine(adaptive=False)
    machine.governor.ended(PROVISION_ERRORED)
    assert machine.current(load=9.0).shrunk_to is None


class TestSensors:
    def test_this_machine_has_some_of_everything(self, tmp_path: Path) -> None:
        reading = sensors.read(tmp_path)
        assert 1 <= reading.processors <= (os.cpu_count() or 1)
        assert reading.load is not None
        assert reading.load >= 0
        assert reading.disk_free is not None
        assert 0 <= reading.disk_free <= 100

    def test_memory_is_what_proc_says(self, tmp_path: Path) -> None:
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(
            "MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    250 kB\nHugePages_Total:       0\n"
        )
        assert sensors.read(tmp_path, meminfo).memory_available == 25.0

    def test_what_is_not_reported_is_not_known(self, tmp_path: Path) -> None:
        reading = sensors.read(tmp_path / "missing", tmp_path / "missing")
        assert (reading.disk_free, reading.memory_available) == (None, None)

    @NEEDS_DISKS
    def test_a_disk_without_free_inodes_is_full(self, tmp_path: Path) -> None:
        with mounted_disk(tmp_path / "disk", mib=8, inodes=100) as disk:
            assert (sensors.read(disk).disk_free or 0) > 90
            for number in range(97):
                (disk / str(number)).touch()
            assert (sensors.read(disk).disk_free or 0) < 5

    @NEEDS_DISKS
    def test_a_full_disk_is_seen_and_refused_by_name(self, tmp_path: Path) -> None:
        with mounted_disk(tmp_path / "disk", mib=8) as disk:
            governor = Governor(
                limit=4,
                limits=MachineLimits(disk=5.0),
                adaptive=True,
                read=lambda: sensors.read(disk),
                starting=StartingJobs(),
                metrics=Metrics(),
                clock=(clock := ManualClock()),
            )
            assert governor.current() == WorkerPressure()
            (disk / "junk").write_bytes(b"x" * (8 * 1024 * 1024 - 100_000))
            clock.forward(READING_SECONDS)
            assert governor.current().refuses is Resource.DISK
            (disk / "junk").unlink()
            clock.forward(READING_SECONDS)
            assert governor.current() == WorkerPressure()
