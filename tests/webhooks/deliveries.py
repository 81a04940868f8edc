"""The deliveries of this folder: documented bodies with invented names, and their meaning.

Beside each body a `.meta.json` tells its source, secret, time, headers, and the outcome that is expected of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from solstice_common.messages import Source
from solstice_forge.decisions.sources import FORGES, WebhookSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    name: str
    origin: Source
    secret: str
    now: float
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes
    expected: Mapping[str, Any]

    @property
    def source(self) -> WebhookSource:
        return WebhookSource(name=self.origin.value, forge=FORGES[self.origin], secrets=(self.secret,))

    @property
    def is_form(self) -> bool:
        return self.headers["content-type"] != "application/json"


@cache
def deliveries() -> Mapping[str, Delivery]:
    """All of them, by name: `github/push-branch`."""
    here = Path(__file__).parent
    return {one.name: one for one in (_read(path) for path in sorted(here.glob("*/*.meta.json")))}


def _read(path: Path) -> Delivery:
    meta = json.loads(path.read_text("utf-8"))
    return Delivery(
        name=f"{path.parent.name}/{path.name.removesuffix('.meta.json')}",
        origin=Source(meta["source"]),
        secret=meta["secret"],
        now=float(meta["now"]),
        headers={name.lower(): value for name, value in meta["headers"].items()},
        body=(path.parent / meta["body"]).read_bytes(),
        expected=meta["expected"],
    )
