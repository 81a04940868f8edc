"""Builds the credentials and timeouts for calling a source's forge. Pure."""

from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.remote.http import CallTimeouts
from solstice_forge.remote.protocol import AppCredentials, ForgeAccess


def access_of(source: WebhookSource) -> ForgeAccess | None:
    """Return a source's forge and credentials; None when it has no URL or credentials."""
    if source.url is None or (source.token is None and source.app is None):
        return None
    app = source.app
    return ForgeAccess(
        name=source.name,
        origin=source.forge.SOURCE,
        url=source.url,
        token=source.token,
        app=None if app is None else AppCredentials(id=app.id, private_key=app.private_key),
    )


def timeouts_of(call_seconds: float) -> CallTimeouts:
    """Return the timeouts of a call to a forge."""
    return CallTimeouts(connect=min(5.0, call_seconds), read=call_seconds * 2 / 3, total=call_seconds)
