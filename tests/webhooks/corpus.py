"""Recorded deliveries of real forges, where the machine has them: `SOLSTICE_WEBHOOK_CORPUS` names their folder.

They are other people's and not copied into this repository. Without the folder each test module says so once.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from solstice_common.messages import Source
from solstice_forge.decisions.sources import FORGES, WebhookSource

CORPUS = os.environ.get("SOLSTICE_WEBHOOK_CORPUS") or None
NO_CORPUS = "not asked for: SOLSTICE_WEBHOOK_CORPUS names no folder with recorded deliveries"


@dataclass(frozen=True)
class Recorded:
    """A body and its sidecar."""

    id: str
    meta: dict[str, Any]
    body: bytes

    @property
    def source(self) -> WebhookSource:
        auth = self.meta["auth"]
        secrets = tuple(auth[key] for key in ("secret", "signing_token") if auth.get(key))
        return WebhookSource(
            name=self.meta["forge"], forge=FORGES[Source(self.meta["forge"])], secrets=secrets
        )

    @property
    def clock(self) -> float:
        return float(self.meta["auth"].get("clock", 1794823200))

    def headers(self, variant: str) -> dict[str, str]:
        return {name.lower(): value for name, value in self.meta[variant].items()}


@cache
def recorded() -> Mapping[str, Recorded]:
    if CORPUS is None:
        return {}
    return {
        meta["id"]: Recorded(meta["id"], meta, (path.parent / meta["body_file"]).read_bytes())
        for path in sorted(Path(CORPUS).glob("*/*.meta.json"))
        if (meta := json.loads(path.read_text()))
    }


@cache
def vectors() -> Mapping[str, dict[str, Any]]:
    if CORPUS is None:
        return {}
    document = json.loads((Path(CORPUS) / "vectors" / "signature_vectors.json").read_text())
    return {vector["id"]: vector for vector in document["vectors"]}
