"""Calls for GitHub's record of deliveries, of repositories, organisations and Apps. Pure.

GitHub stores them for three days, an Enterprise Server for seven.
Source: docs.github.com/rest/repos/webhooks, /rest/orgs/webhooks, /rest/apps/webhooks (`cursor` from the Link header;
`guid` is one for an event, in all hooks and all attempts; `status_code` of an attempt that never connected is no HTTP
status), /webhooks/using-webhooks/redelivering-webhooks.
"""

from datetime import datetime
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from solstice_forge.remote.github_calls import repository_path
from solstice_forge.remote.hooks import PER_PAGE, Attempt, Hook, HookOwner
from solstice_forge.remote.protocol import ForgeCall, Page, Unreadable, name_in, nothing, paged

SPACING_SECONDS: Final = 0.0
"""The pace of all writing calls is enough: GitHub names no separate limit for this."""
_SUCCESS: Final = range(200, 300)
_OF_APP: Final = HookOwner(name="the GitHub App", path="/app/hook", repository="")


def hook_owners(repository: str) -> tuple[HookOwner, ...]:
    owner = repository.partition("/")[0]
    return (
        HookOwner(
            name=repository,
            path=f"{repository_path(repository)}/hooks",
            repository=repository,
            permissions=MappingProxyType({"repository_hooks": "write"}),
        ),
        HookOwner(
            name=f"organisation {owner}",
            path=f"/orgs/{quote(owner, safe='')}/hooks",
            repository=repository,
            shared=True,
            permissions=MappingProxyType({"organization_hooks": "write"}),
        ),
    )


def find_hooks(owner: HookOwner) -> ForgeCall[Page[Hook]]:
    def hook(document: Any) -> Hook:
        return Hook(
            owner=owner,
            path=f"{owner.path}/{int(document['id'])}",
            url=str(document["config"].get("url", "")),
        )

    call: ForgeCall[None] = ForgeCall(
        method="GET",
        path=owner.path,
        query=MappingProxyType({"per_page": PER_PAGE}),
        repository=owner.repository,
        permissions=owner.permissions,
        read=nothing,
    )
    return paged(call, hook)


def find_app_hook() -> ForgeCall[Hook]:
    """Return the webhook of the App itself, which calls for all its installations."""
    return ForgeCall(
        method="GET",
        path="/app/hook/config",
        as_app=True,
        read=lambda document: Hook(
            owner=_OF_APP, path=_OF_APP.path, url=str(document.get("url") or ""), as_app=True
        ),
    )


def find_attempts(hook: Hook) -> ForgeCall[Page[Attempt]]:
    call: ForgeCall[None] = ForgeCall(
        method="GET",
        path=f"{hook.path}/deliveries",
        query=MappingProxyType({"per_page": PER_PAGE}),
        repository=hook.owner.repository,
        permissions=hook.owner.permissions,
        as_app=hook.as_app,
        read=nothing,
    )
    return paged(call, _attempt)


def send_again(hook: Hook, attempt: Attempt) -> ForgeCall[None]:
    return ForgeCall(
        method="POST",
        path=f"{hook.path}/deliveries/{attempt.id}/attempts",
        repository=hook.owner.repository,
        permissions=hook.owner.permissions,
        as_app=hook.as_app,
        unread=True,
        read=nothing,
    )


def _attempt(document: Any) -> Attempt:
    code = int(document["status_code"] or 0)
    return Attempt(
        id=int(document["id"]),
        delivery_id=name_in(document["guid"]),
        event=name_in(document["event"]),
        succeeded=code in _SUCCESS,
        why=f"{code} {document.get('status') or ''}".strip(),
        delivered_at=_moment(document["delivered_at"]),
    )


def _moment(text: str) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise Unreadable("no moment")
    return moment.timestamp()
