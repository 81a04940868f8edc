"""Lock files show which processes of an embedded broker are alive."""

from pathlib import Path

from solstice_common.broker.embedded.process_locks import ProcessLocks


def test_a_holder_is_alive_until_it_leaves(tmp_path: Path) -> None:
    process_locks, others = ProcessLocks(tmp_path / "owners"), ProcessLocks(tmp_path / "owners")
    with process_locks.hold() as token, others.hold() as other:
        assert token != other
        assert others.alive(token)
        assert process_locks.alive(token)
        assert others.dead_tokens() == []
    assert not others.alive(token)
    assert others.dead_tokens() == []
    assert list((tmp_path / "owners").iterdir()) == []


def test_a_lock_file_without_a_lock_is_cut_until_it_is_forgotten(tmp_path: Path) -> None:
    process_locks = ProcessLocks(tmp_path)
    (tmp_path / "dead.lock").touch()
    assert process_locks.dead_tokens() == ["dead"]
    assert process_locks.dead_tokens() == ["dead"]
    process_locks.forget("dead")
    process_locks.forget("dead")
    assert process_locks.dead_tokens() == []


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    (tmp_path / "half.new").touch()
    assert ProcessLocks(tmp_path).dead_tokens() == []
    assert {entry.name for entry in tmp_path.iterdir()} == {"README", "half.new"}


def test_a_directory_without_a_process_has_no_holder(tmp_path: Path) -> None:
    process_locks = ProcessLocks(tmp_path / "owners")
    (tmp_path / "owners").rmdir()
    assert process_locks.dead_tokens() == []
    assert not process_locks.alive("anybody")
