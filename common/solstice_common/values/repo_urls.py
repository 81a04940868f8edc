"""Makes the canonical URL of a repository: rules see what git fetches. Pure.

Every entry point calls `canonical` before any rule, secret, key, group or rate sees a URL: the fields of messages
(webhooks, `enqueue`, the API, the queue), schedules, secret rules and git itself. A URL that means one thing for git
and another for a rule is refused; another spelling of the same repository becomes the one spelling (RFC 3986, section
6.2).
"""

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final
from unicodedata import normalize
from urllib.parse import SplitResult, unquote, unquote_to_bytes, urlsplit

REPO_URL_SCHEMES: Final = frozenset({"https", "http", "ssh", "git", "file"})
"""The schemes of `repo_url`; each orchestrator chooses those it fetches (`GIT_PROTOCOLS`)."""

_DEFAULT_PORTS: Final = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
_ESCAPES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HIDDEN: Final = re.compile(rb"%(?:[01][0-9a-f]|7f|2f|5c|c[01])", re.IGNORECASE)
"""Control characters, slashes and backslashes; also 0xC0 and 0xC1, which begin only overlong encodings."""
_HOST: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_NUMBER: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SCP: Final = re.compile(
    r"(?P<authority>(?:[^\s@/:]+@)?(?:[^\s@/:\[\]-][^\s@/:\[\]]*|\[[0-9A-Fa-f:]+\])):(?P<path>[^:\s]\S*)"
)
_WRONG_ADDRESS: Final = "must write an address as 192.0.2.1 or [2001:db8::1]"
_LONGEST_NAME: Final = 255
_MOST_LAYERS: Final = 4
"""How often a path may be percent-encoded; legitimate paths are encoded at most twice."""


# Few repositories are pushed to repeatedly, and parsing a URL costs more than the rest of a message.
@lru_cache(maxsize=1024)
def canonical(url: str) -> str:
    """Return the one spelling of a repository's URL; ValueError says what is not allowed.

    Idempotent. The scheme stays, and so does a trailing `.git`: some servers know a repository only with it,
    or only without it.
    """
    scheme = _scheme(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        # In our words: its own are about brackets and octets.
        raise ValueError(_WRONG_ADDRESS) from None
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError("must not hold '?' or '#': no repository is named by what follows them")
    return f"{scheme}://{_authority(scheme, parts)}{_path(parts.path)}"


def name_of(repo_url: str) -> str:
    """Return the name of a repository in rules.

    For example `forge.example/river/otter`, `forge.example:8443/river/otter`, `/srv/git/otter`. Without scheme, user
    and `.git`. ValueError as of `canonical`.
    """
    _, _, rest = canonical(repo_url).partition("://")
    authority, slash, path = rest.partition("/")
    return authority.rpartition("@")[2] + (slash + path).removesuffix(".git").removesuffix("/")


def full_name_of(repo_url: str) -> str | None:
    """Return the forge's name of the repository at this URL (`river/otter`); None when unknown.

    For a folder of this machine, these are the last two parts of its path.
    """
    try:
        parts = urlsplit(canonical(repo_url))
    except ValueError:
        return None
    path = unquote(parts.path).strip("/").removesuffix(".git").rstrip("/")
    if parts.scheme == "file":
        path = "/".join(path.split("/")[-2:])
    return path if path and len(path) <= _LONGEST_NAME and path.isprintable() else None


def from_scp(text: str) -> str | None:
    """Return the ssh:// URL of git's `git@host:path` or `host:path`. None for anything else."""
    match = None if "://" in text else _SCP.fullmatch(text)
    return match and f"ssh://{match['authority']}/{match['path'].lstrip('/')}"


def without_user(url: str) -> str:
    """Return an http(s) URL without the user and password of a clone; others unchanged."""
    scheme, separator, rest = url.partition("://")
    if scheme not in {"http", "https"} or not separator:
        return url
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def spelled(url: str) -> str:
    """Return the canonical URL, or the text itself when it has none.

    Used for keys of requests that are refused a moment later.
    """
    try:
        return canonical(url)
    except ValueError:
        return url


def _scheme(url: str) -> str:
    """Return the scheme of a URL."""
    if url.startswith("-"):
        raise ValueError("must not start with '-': git would take it for an option")
    if not url.isprintable() or " " in url:
        raise ValueError("must not hold white space or control characters")
    if "\\" in url:
        raise ValueError("must not hold a backslash: programs disagree about what it means in a URL")
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ValueError(
            f"must be a URL with one of the schemes {', '.join(sorted(REPO_URL_SCHEMES))}; "
            "write git@host:path as ssh://git@host/path"
        )
    if scheme not in REPO_URL_SCHEMES:
        raise ValueError(f"has the scheme {scheme!r}; allowed are {', '.join(sorted(REPO_URL_SCHEMES))}")
    return scheme


def _authority(scheme: str, parts: SplitResult) -> str:
    """Return user, host and port; nothing for a file."""
    if parts.password is not None or (parts.username is not None and scheme in {"http", "https"}):
        raise ValueError("must not hold credentials: they would stand in messages and logs")
    if scheme == "file":
        if parts.netloc.lower() not in {"", "localhost"} or not parts.path.strip("/"):
            raise ValueError("must name a file on this machine: file:///path")
        return ""
    if not parts.hostname or parts.hostname.startswith("-") or parts.netloc.startswith("-"):
        raise ValueError("must name a host")
    if parts.netloc.count("@") > 1 or not _has_usable_port(parts):
        raise ValueError("must name one host and a port from 1 to 65535")
    if "%" in parts.netloc:
        raise ValueError(
            "must name user and host without escapes: programs disagree about what they mean there"
        )
    user = "" if parts.username is None else f"{parts.username}@"
    port = "" if parts.port in {None, _DEFAULT_PORTS[scheme]} else f":{parts.port}"
    return user + _host(parts) + port


def _has_usable_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _host(parts: SplitResult) -> str:
    try:
        return _name_or_address(parts)
    except AddressValueError:
        raise ValueError(_WRONG_ADDRESS) from None


def _name_or_address(parts: SplitResult) -> str:
    name = (parts.hostname or "").lower()
    if "[" in parts.netloc:
        return f"[{IPv6Address(name)}]"
    name = name.removesuffix(".")
    if not name.isascii():
        # Programs map such a name to an ASCII one, which must not change its meaning.
        if normalize("NFKC", name) != name or "\u3002" in name or not all(name.split(".")):
            raise ValueError("must name the host in its usual letters")
        return name
    if not _HOST.fullmatch(name):
        raise ValueError("must name a host of letters, digits, hyphens and dots")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        # 127.1, 0x7f.1 and 2130706433 are addresses as well, to some programs.
        return str(IPv4Address(name))
    return name


def _path(path: str) -> str:
    if _BROKEN_ESCAPE.search(path):
        raise ValueError("must not hold a '%' that is no escape: write %25 for the character itself")
    _refuse_hidden(path.encode("utf-8", "surrogatepass"))
    plain = _ESCAPES.sub(lambda run: _decoded(run[0]), path)
    return re.sub(r"/{2,}", "/", plain).rstrip("/")


def _refuse_hidden(path: bytes) -> None:
    """Check every layer of escapes: servers behind proxies decode more than once."""
    for layer in range(_MOST_LAYERS + 1):
        if any(part.partition(b";")[0].strip() in {b".", b".."} for part in path.split(b"/")):
            raise ValueError("must not hold '.' or '..' as a part of its path, encoded or not")
        if _HIDDEN.search(path):
            what = "white space or control characters" if layer == 0 else "anything encoded twice"
            raise ValueError(f"must not hold an encoded slash or backslash, nor {what}")
        decoded = unquote_to_bytes(path)
        if decoded == path:
            return
        path = decoded
    raise ValueError("must not hold anything encoded again and again")


def _decoded(run: str) -> str:
    """Decode what needs no escape; write the rest as escapes in capitals."""
    # Byte for byte, also next to invalid UTF-8: otherwise a second pass would find other parts to decode.
    return "".join(map(_plain, unquote_to_bytes(run).decode("utf-8", "surrogateescape")))


def _plain(character: str) -> str:
    if character in _UNRESERVED:
        return character
    if not character.isascii() and character.isprintable() and not character.isspace():
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))
