"""By what right a source's forge is called. Pure."""

from solstice_forge.remote.protocol import Access, App
from solstice_forge.sources import Source


def access_of(source: Source) -> Access | None:
    """The forge behind a source and its credentials; None when the source has no URL or no credentials."""
    if source.url is None or (source.token is None and source.app is None):
        return None
    app = source.app
    return Access(
        name=source.name,
        origin=source.forge.SOURCE,
        url=source.url,
        token=source.token,
        app=None if app is None else App(id=app.id, private_key=app.private_key),
    )
