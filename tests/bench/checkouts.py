"""Another checkout of the project, measured in the same run as this one."""

from pathlib import Path


def python_of(checkout: Path) -> Path:
    """Return the Python of an installed checkout, which runs the services of that."""
    return checkout.absolute() / ".venv" / "bin" / "python"
