"""Find the images of jobs on this machine, and fetch them from their registries."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.messages.states import JobState
from solstice_common.values.references import References
from solstice_orchestrator.domain.container_spec import PullPolicy
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.worker.executors.containers.container_plan import ImagePlan
from solstice_orchestrator.worker.executors.containers.podman import Podman, PodmanResult
from solstice_orchestrator.worker.executors.containers.registry_logins import (
    NO_LOGINS,
    LoginRule,
    auth_file,
    parse_login_rules,
)

LOG = structlog.get_logger(__name__)

PULL_SECONDS: Final = 900.0
_NOT_FOUND: Final = re.compile(
    r"manifest unknown|name unknown|(?:manifest|repository|name|tag)\b.{0,400}\bnot found|unauthorized|(?<!permission )denied|"
    r"no image found in (?:manifest list|image index)",
    re.IGNORECASE,
)

_NO_FILE: Final = re.compile(r"could not find|no such file", re.IGNORECASE)


FileState: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundImage:
    """An image on this machine."""

    image_id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The images of this machine; many attempts may ask for one at once."""

    podman: Podman
    references: References
    """Of the passwords of logins."""
    index: Path | None = None
    """The file that podman replaces whenever an image or a name of one changes; None: there may be others beside it."""
    _known: dict[str, tuple[FileState, FoundImage]] = field(default_factory=dict)
    """What podman said about names, and the state of `index` before."""
    _pulling: dict[str, asyncio.Lock] = field(default_factory=dict)
    _with_shell: set[str] = field(default_factory=set)
    """The ids of images that have a /bin/sh."""

    async def find(self, plan: ImagePlan) -> FoundImage | Outcome:
        """Return the image of a plan, or how an attempt ends without it."""
        name, pull = plan.image, plan.pull
        found = None if pull is PullPolicy.ALWAYS else await self._stored(name)
        if found:
            return found
        if pull is PullPolicy.NEVER:
            return _unavailable(f"the image {name} is not on this worker, and may not be pulled")
        async with self._pulling.setdefault(name, asyncio.Lock()):
            # Another attempt may have fetched it by now.
            found = await self._stored(name) if pull is PullPolicy.MISSING else None
            if found:
                return found
            try:
                logins = await asyncio.to_thread(self._logins, plan)
            except ValueError as error:
                LOG.warning(LogEvent.REGISTRY_LOGIN_UNUSABLE, image=name, detail=str(error))
                return _broken(f"the login that fetches the image {name} cannot be used on this worker")
            # With its transport: others read files of this machine.
            pulled = await self.podman.run(
                "pull", "--quiet", f"docker://{name}", seconds=PULL_SECONDS, logins=logins
            )
        if pulled.code:
            return _outcome_of_pull(name, pulled)
        return await self._stored(name) or _broken(f"the image {name} was pulled, and is gone")

    def _logins(self, plan: ImagePlan) -> bytes | None:
        """Return podman's file of logins for a pull; None: that of the machine.

        ValueError: the password cannot be read.
        """
        if plan.login is None:
            return None if plan.is_trusted else NO_LOGINS
        return auth_file(plan.image, plan.login.user, self.references.value(plan.login.password))

    async def shell_problem(self, name: str, image: FoundImage, container: str, file: Path) -> Outcome | None:
        """Return the failure of an image without /bin/sh; `file` gets a copy of that."""
        if image.image_id in self._with_shell:
            return None
        copied = await self.podman.run("cp", f"{container}:/bin/sh", str(file))
        if copied.code:
            missing = _NO_FILE.search(copied.errors)
            return _unavailable(f"the image {name} has no /bin/sh") if missing else None
        if not await asyncio.to_thread(_is_program, file):
            return _unavailable(f"the /bin/sh of the image {name} is no program")
        self._with_shell.add(image.image_id)
        return None

    async def _stored(self, name: str) -> FoundImage | Outcome | None:
        """Return the image; None: it is not here.

        An outcome: podman was killed, or did not end.
        """
        state = _state_of(self.index)
        if state and (known := self._known.get(name)) and known[0] == state:
            return known[1]
        form = "{{.Id}} {{.Digest}} {{range .RepoDigests}}{{.}} {{end}}"
        result = await self.podman.run("image", "inspect", "--format", form, name)
        if result.code < 0:
            return _broken(f"the image {name} could not be found: {result.problem}")
        found = None if result.code else _found(name, result.output.split())
        if state and found:
            self._known[name] = state, found
        return found


def index_of(store: Mapping[str, Any]) -> Path | None:
    """Return the file that lists the images of a store.

    `store` is what `podman info` says of it. None: it has images of other stores beside its own.
    """
    if any("imagestore" in option.lower() for option in store.get("graphOptions") or {}):
        return None
    return Path(store["graphRoot"], f"{store['graphDriverName']}-images", "images.json")


def _state_of(file: Path | None) -> FileState | None:
    """Return what differs once a file was replaced; None when there is none."""
    if file is None:
        return None
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _found(name: str, fields: Sequence[str]) -> FoundImage | None:
    """Return the image, unless podman knows its digest from another repository alone."""
    image_id, digest, *known = fields
    tagged, _, named_digest = name.partition("@")
    repository = re.sub(r":[^:/]*$", "", tagged)
    digests = [each.partition("@")[2] for each in known if each.startswith(f"{repository}@")]
    if named_digest:
        return FoundImage(image_id=image_id, digest=named_digest) if named_digest in digests else None
    return FoundImage(image_id=image_id, digest=digest if digest in digests else [*digests, digest][0])


def _is_program(file: Path) -> bool:
    return file.is_file() and bool(file.stat().st_mode & 0o111)


def _outcome_of_pull(name: str, pulled: PodmanResult) -> Outcome:
    if _NOT_FOUND.search(pulled.errors):
        return _unavailable(f"the registry does not give the image {name}: {pulled.problem}")
    return _broken(f"the image {name} could not be pulled: {pulled.problem}")


def _unavailable(detail: str) -> Outcome:
    return Outcome(state=JobState.FAILED, reason=Reason.IMAGE_UNAVAILABLE, detail=detail)


def _broken(detail: str) -> Outcome:
    return Outcome(state=JobState.ERRORED, reason=Reason.PROVISION_FAILED, detail=detail)


def read_login_rules(path: str) -> tuple[LoginRule, ...]:
    """Read the rules from a file; an empty path means no file and no logins.

    Raises ConfigurationError, which names every wrong key.
    """
    if not path:
        return ()
    file = Path(path).expanduser()
    try:
        return parse_login_rules(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"REGISTRY_LOGINS {file}: {error.strerror or error}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"REGISTRY_LOGINS {file}: {error}") from None
