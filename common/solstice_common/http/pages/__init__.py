"""The common frame of all pages: layout, style and templates."""

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from solstice_common.values import times

FRAME = "solstice_common.http.pages"


def page_environment(package: str, **names: object) -> Environment:
    """The templates of `package` over those of the frame; every page sees `names`, and `times`.

    A service's `page.html` extends `frame.html`; the frame's `error.html` extends the service's `page.html`.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(FRAME)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"times": times, **names}
    return environment


def static_files(package: str) -> Mount:
    """Serve `/static`: the files in `static` of the frame and of `package`."""
    return Mount("/static", _Static(packages=[(FRAME, "static"), (package, "static")]))


class _Static(StaticFiles):
    """Files that a browser caches but checks each time.

    So script and page always have the same version.
    """

    def file_response(self, *args: Any, **named: Any) -> Response:
        response = super().file_response(*args, **named)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
