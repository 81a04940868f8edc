"""Files of commits, fetched once: a commit never changes, and one push may ask for the same file many times at once."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
from solstice_common.messages import JobRequestV1

from solstice_orchestrator.checkout import fetch_files
from solstice_orchestrator.git import CheckoutFailed, GitPolicy
from solstice_orchestrator.jobs import Reason
from solstice_orchestrator.log_events import LogEvent

LOG = structlog.get_logger(__name__)

MAX_COMMITS: Final = 128
MAX_BYTES: Final = 64 * 1024
"""Of one commit's files; larger ones are not kept."""

_Key = tuple[str, str, tuple[str, ...]]
_Files = Mapping[str, bytes]


class CommitFiles:
    """Fetches in `tasks`; who asks for what is being fetched already shares the answer, also a failure."""

    def __init__(self, tasks: asyncio.TaskGroup, policy: GitPolicy, scratch: Path) -> None:
        self._tasks, self._policy, self._scratch = tasks, policy, scratch
        self._kept: OrderedDict[_Key, _Files] = OrderedDict()
        self._coming: dict[_Key, asyncio.Task[_Files | CheckoutFailed]] = {}

    async def of(self, request: JobRequestV1, paths: Sequence[str]) -> _Files:
        """Those of the files that the request's commit holds; raises CheckoutFailed."""
        key = (request.repo_url, request.commit_sha, tuple(paths))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._coming:
            self._coming[key] = self._tasks.create_task(
                self._fetch(key, request), name=f"fetch {request.commit_sha[:10]}"
            )
        # Shielded: who gives up waiting leaves the others their answer.
        answer = await asyncio.shield(self._coming[key])
        if isinstance(answer, CheckoutFailed):
            raise CheckoutFailed(answer.reason, answer.detail, may_appear=answer.may_appear)
        return answer

    async def _fetch(self, key: _Key, request: JobRequestV1) -> _Files | CheckoutFailed:
        try:
            files = await fetch_files(request, key[2], policy=self._policy, scratch=self._scratch)
        except CheckoutFailed as error:
            return error
        except Exception as error:
            # One fetch must not take the others with it.
            LOG.exception(LogEvent.PLANNING_BROKE, request_id=request.request_id)
            return CheckoutFailed(Reason.CHECKOUT_FAILED, f"{type(error).__name__}: {error}")
        finally:
            del self._coming[key]
        if sum(map(len, files.values())) <= MAX_BYTES:
            self._kept[key] = files
            if len(self._kept) > MAX_COMMITS:
                self._kept.popitem(last=False)
        return files
