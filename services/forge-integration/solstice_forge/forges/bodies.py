"""Extracts the JSON text of a delivery that came as JSON or as a form. Pure."""

from urllib.parse import unquote_to_bytes

from solstice_forge.forges.protocol import Headers, Unsupported

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
_FIELD = b"payload="


def payload_of(headers: Headers, body: bytes, *, form: bool = True) -> bytes | Unsupported:
    """Return the JSON text to parse; empty when a form has no field `payload`."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == JSON:
        return body
    if form and media_type == FORM:
        return next((_decoded(field) for field in body.split(b"&") if field.startswith(_FIELD)), b"")
    accepted = f"{JSON} or {FORM}" if form else JSON
    return Unsupported(
        detail=f"the content type is {media_type or 'missing'}: set it to {accepted} in the forge's webhook settings"
    )


def _decoded(field: bytes) -> bytes:
    return unquote_to_bytes(field.removeprefix(_FIELD).replace(b"+", b" "))
