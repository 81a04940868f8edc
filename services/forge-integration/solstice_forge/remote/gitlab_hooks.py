"""Calls for GitLab's record of deliveries (17.3 and later), of projects and groups. Pure.

GitLab stores them for seven days.
Source: docs.gitlab.com/api/project_webhooks and /api/group_webhooks ("List all events", "Resend": five a minute for
each hook and user), lib/api/entities/web_hook_log.rb: an event has no time; `response_status` is a code, or `internal
error` when nothing was reached. A redirect counts as success (app/services/web_hook_service.rb).
"""

from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from solstice_forge.remote.gitlab_calls import project_path
from solstice_forge.remote.hooks import PER_PAGE, Attempt, Hook, HookOwner
from solstice_forge.remote.protocol import ForgeCall, Page, Unreadable, nothing, paged

SPACING_SECONDS: Final = 13.0
"""Five per minute are allowed."""
EVENTS_PER_PAGE: Final = "20"
"""Few, because each event comes with all that was sent."""
_SUCCESS: Final = range(200, 400)


def hook_owners(repository: str) -> tuple[HookOwner, ...]:
    groups = repository.split("/")[:-1]
    above = ["/".join(groups[: len(groups) - number]) for number in range(len(groups))]
    return (
        HookOwner(name=repository, path=f"{project_path(repository)}/hooks", repository=repository),
        *(
            HookOwner(
                name=f"group {group}",
                path=f"/groups/{quote(group, safe='')}/hooks",
                repository=repository,
                shared=True,
            )
            for group in above
        ),
    )


def find_hooks(owner: HookOwner) -> ForgeCall[Page[Hook]]:
    def hook(document: Any) -> Hook:
        return Hook(owner=owner, path=f"{owner.path}/{int(document['id'])}", url=str(document["url"]))

    call: ForgeCall[None] = ForgeCall(
        method="GET", path=owner.path, query=MappingProxyType({"per_page": PER_PAGE}), read=nothing
    )
    return paged(call, hook)


def find_attempts(hook: Hook) -> ForgeCall[Page[Attempt]]:
    call: ForgeCall[None] = ForgeCall(
        method="GET",
        path=f"{hook.path}/events",
        query=MappingProxyType({"per_page": EVENTS_PER_PAGE}),
        read=nothing,
    )
    return paged(call, _attempt)


def send_again(hook: Hook, attempt: Attempt) -> ForgeCall[None]:
    return ForgeCall(method="POST", path=f"{hook.path}/events/{attempt.id}/resend", unread=True, read=nothing)


def _attempt(document: Any) -> Attempt:
    headers = {str(name).lower(): str(value) for name, value in document["request_headers"].items()}
    # A signed delivery's `webhook-id` is the same as the key. Before 17.4 there was no key.
    delivery_id = headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid")
    if not delivery_id:
        raise Unreadable("no delivery id")
    status = str(document["response_status"])
    return Attempt(
        id=int(document["id"]),
        delivery_id=delivery_id,
        event=headers.get("x-gitlab-event", str(document.get("trigger", ""))),
        succeeded=status.isdecimal() and int(status) in _SUCCESS,
        why=status,
        delivered_at=None,
    )
