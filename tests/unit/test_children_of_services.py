"""No module starts a process or watches a pipe through the event loop.

uvloop closes descriptors twice.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for folder in ("common", "services") for path in (ROOT / folder).rglob("*.py"))
FORBIDDEN = {
    "connect_read_pipe",
    "connect_write_pipe",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "fdopen",
    "fromfd",
    "preexec_fn",
    "subprocess_exec",
    "subprocess_shell",
}
"""`os.fdopen` has a fine use, of a descriptor that was just opened and has no other owner: those are listed."""
FINE = {
    ("children.py", "fdopen"),  # of a pidfd, in one statement
    ("forked_supervisors.py", "fdopen"),  # of both ends of a new pipe
    ("making.py", "fdopen"),  # of what os.open gave, in one statement
    ("object_cache.py", "fdopen"),  # of what os.open gave
    ("replaced_file.py", "fdopen"),  # of what os.open gave, in one statement
    ("running_up.py", "fdopen"),  # the same
    ("secrets.py", "fdopen"),  # the same
    ("service_output.py", "fdopen"),  # the same
    ("small_checkouts.py", "fdopen"),  # the same
    ("sqlite_files.py", "fdopen"),  # of what mkstemp and os.open gave
    ("up.py", "fdopen"),  # of what open_private gave, in one statement
}


def names_in(code: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case (
                ast.Attribute(attr=name)
                | ast.Name(id=name)
                | ast.alias(name=name)
                | ast.keyword(arg=str(name))
            ):
                found.add(name)
            case ast.Constant(value=str(text)):
                found.add(text)  # getattr(loop, "connect_read_pipe")
    return found & FORBIDDEN


@pytest.mark.parametrize("code", [
    "asyncio.create_subprocess_exec('true')",
    "from asyncio import create_subprocess_shell",
    "await loop.connect_read_pipe(f, os.fdopen(1))",
    "getattr(loop, 'connect_write_pipe')",
    "Popen(['true'], preexec_fn=limit)",
])  # fmt: skip
def test_the_rule_sees_what_it_forbids(code: str) -> None:
    assert names_in(f"async def f():\n    {code}")


def test_no_module_uses_what_closes_descriptors_twice() -> None:
    assert len(MODULES) > 100
    found = {(path.name, name) for path in MODULES for name in names_in(path.read_text(encoding="utf-8"))}
    assert found - FINE == set()
