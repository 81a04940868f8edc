from pathlib import Path

from solstice_common.broker.embedded.process_locks import Lifelines


def test_a_holder_is_alive_until_it_leaves(tmp_path: Path) -> None:
    lifelines, others = Lifelines(tmp_path / "owners"), Lifelines(tmp_path / "owners")
    with lifelines.hold() as token, others.hold() as other:
        assert token != other
        assert others.alive(token)
        assert lifelines.alive(token)
        assert others.cut() == []
    assert not others.alive(token)
    assert others.cut() == []
    assert list((tmp_path / "owners").iterdir()) == []


def test_a_lock_file_that_nobody_locks_is_cut_until_it_is_forgotten(tmp_path: Path) -> None:
    lifelines = Lifelines(tmp_path)
    (tmp_path / "dead.lock").touch()
    assert lifelines.cut() == ["dead"]
    assert lifelines.cut() == ["dead"]
    lifelines.forget("dead")
    lifelines.forget("dead")
    assert lifelines.cut() == []


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    (tmp_path / "half.new").touch()
    assert Lifelines(tmp_path).cut() == []
    assert {entry.name for entry in tmp_path.iterdir()} == {"README", "half.new"}


def test_a_directory_that_is_gone_holds_nobody(tmp_path: Path) -> None:
    lifelines = Lifelines(tmp_path / "owners")
    (tmp_path / "owners").rmdir()
    assert lifelines.cut() == []
    assert not lifelines.alive("anybody")
