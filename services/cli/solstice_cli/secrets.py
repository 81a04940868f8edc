"""Makes and stores the webhook secrets of `solstice up`.

Only their owner can read the file.
"""

import os
import secrets
from pathlib import Path
from typing import Final

import orjson

from solstice_cli.local import secrets_file
from solstice_common.addresses.system_errors import system_words
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_common.runtime.private_paths import OWNER_ONLY, make_private_directory
from solstice_common.storage.private_files import open_private

FORGES: Final = (Source.FORGEJO, Source.GITEA, Source.GITHUB, Source.GITLAB)
SECRET_BYTES: Final = 24


def stored_secrets() -> dict[Source, str]:
    """Return one secret per forge, made and written the first time."""
    path = secrets_file()
    by_forge = _read(path)
    if missing := [forge for forge in FORGES if not by_forge.get(forge)]:
        by_forge |= {forge: secrets.token_urlsafe(SECRET_BYTES) for forge in missing}
        _write(path, by_forge)
    return by_forge


def stored_secret(source: Source) -> str | None:
    """Return the secret of a forge, if there is one."""
    return _read(secrets_file()).get(source)


def _read(path: Path) -> dict[Source, str]:
    try:
        with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
            document = orjson.loads(file.read())
        return {Source(name): str(secret) for name, secret in document.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the webhook secrets in {path} cannot be read ({system_words(str(error))}): fix the file, or remove it to have new ones made"
        ) from None


def _write(path: Path, by_forge: dict[Source, str]) -> None:
    make_private_directory(path.parent)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.unlink(missing_ok=True)
    # O_EXCL: we write neither to a file that another user made before us, nor through a symbolic link.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            orjson.dumps(
                {forge.value: secret for forge, secret in by_forge.items()}, option=orjson.OPT_INDENT_2
            )
        )
    fresh.replace(path)
