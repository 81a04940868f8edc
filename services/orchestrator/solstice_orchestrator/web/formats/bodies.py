"""Read and check JSON bodies of API v1, within limits of size and time."""

import asyncio
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from solstice_common.http.openapi import JSON
from solstice_common.validation import in_words
from solstice_orchestrator.web.formats.refusals import HttpRefusal

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_BYTES: Final = 64 * 1024
BODY_SECONDS: Final = 10.0


async def parse_body(request: Request, model: type[ModelT]) -> ModelT:
    """Parse a request's body; raises HttpRefusal when it is wrong.

    It may be no JSON, too large, too slow, or not fit the model.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise HttpRefusal(
            415, "unsupported_content_type", f"Send it as {JSON}, not as {kind[:100] or 'nothing'}."
        )
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise HttpRefusal(413, "too_large", f"It has more than {MAX_BYTES} bytes.")
    except (TimeoutError, ClientDisconnect):
        raise HttpRefusal(
            408, "body_incomplete", f"The body was not here within {BODY_SECONDS:.0f} s: send it again."
        ) from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise HttpRefusal(400, "malformed", f"{_said(error)}.") from None


def _said(error: ValidationError) -> str:
    """Describe the errors in one line."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {in_words(problem)}"
        for problem in error.errors(include_url=False, include_input=False)[:10]
    )
