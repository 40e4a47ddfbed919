"""Keys of objects: docs/redis-contract.md, section Keys."""

from __future__ import annotations

import re
import zlib
from typing import List, Sequence, Tuple

from .errors import InvalidError

MAX_KEY = 2048
MAX_PAIRS = 64
_DEVICE = "[!#-+.0->@-~-]{1,128}"
_HOST = r"[a-z0-9._-]{1,253}|\[[0-9a-f:.]{1,251}\]"
_VIRTUAL_HOST = f"//([a-z0-9_-]{{1,64}}|[a-z0-9_-]{{0,64}}:({_HOST}))"
_LANGUAGE = "#[a-z]{2,8}(-[a-z0-9]{1,8})*"
_KEY = re.compile(f"(@{_DEVICE})?({_VIRTUAL_HOST}/|/(?!/))[!\"$-~]*({_LANGUAGE})?")
_ID = re.compile(_DEVICE)
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_UNRESERVED = re.compile("[A-Za-z0-9._~-]")


def key_of_virtual_host(name: str, host: str, path: str) -> str:
    """The key of the object at path for requests of a virtual host or, under a rule with scope ``host``, for those
    with this host. The name is "" for rules outside virtual hosts, the host for rules without that scope."""
    return f"//{name}:{host.lower()}{path}" if host else f"//{name}{path}"


def key_of_device(device: str, key: str) -> str:
    """The key of the object that only this device gets."""
    return f"@{device}{key}"


def key_of_language(key: str, language: str) -> str:
    """The key of the object for key in a language."""
    return f"{key}#{language.lower()}"


def shard_of(id: str, shards: int) -> int:
    """The shard of a key or device id."""
    return zlib.crc32(id.encode()) % shards


def split(key: str) -> Tuple[str, str]:
    """What precedes the path of a key: device, virtual host and host; and the path with its query."""
    found = re.match("(@[^/]*)?(//[^/]*(?=/))?", key)
    space = found[0] if found else ""
    return space, key[len(space) :]


def canonical(key: str) -> str:
    """The stored form of a key: host and language in lower case, the hex digits of escapes in upper case. Raises
    InvalidError for a key that no edge looks up."""
    space, target = split(key)
    target, mark, language = target.partition("#")
    language = mark + language.lower()
    device, slashes, host = space.partition("//")
    name, colon, host = host.partition(":")
    space = device + slashes + name + colon + host.lower()
    target = _ESCAPE.sub(lambda escape: escape[0].upper(), target)
    want = looked_up(target)
    stored = space + target + language
    if len(stored) > MAX_KEY:
        raise InvalidError(f"key {key[:64]!r}…: {len(stored)} bytes, at most {MAX_KEY} are allowed")
    if not _KEY.fullmatch(stored):
        raise InvalidError(f"key {key!r}: want visible ASCII, [@device][//[virtual-host][:host]]/path[#language]")
    if target.partition("?")[2].count("&") >= MAX_PAIRS:
        raise InvalidError(f"key {key!r}: more than {MAX_PAIRS} parameters")
    if target != want:
        raise InvalidError(f"key {key!r}: no edge looks it up, want {space + want + language!r}")
    return stored


def looked_up(target: str) -> str:
    """The target that the edge looks up for a request with this one: the proxy has normalised its path, and the edge
    has sorted its query by name, without empty pairs."""
    path, _, query = target.partition("?")
    path = re.sub("%2F|%5C|\\\\", "/", _ESCAPE.sub(lambda escape: _decode(escape[0]), path))
    parts: List[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del parts[-1:]
        elif segment not in ("", "."):
            parts.append(segment)
    if parts and segments[-1] in ("", ".", ".."):
        parts.append("")
    pairs = sorted(filter(None, query.split("&")), key=lambda pair: pair.partition("=")[0])
    return "/" + "/".join(parts) + ("?" + "&".join(pairs) if pairs else "")


def _decode(escape: str) -> str:
    char = chr(int(escape[1:], 16))
    return char if _UNRESERVED.fullmatch(char) else escape


def check_device_id(id: str) -> None:
    if not _ID.fullmatch(id):
        raise InvalidError(f"device id {id[:130]!r}: want 1 to 128 bytes of visible ASCII without / ? , and \"")


def purges_of(key: str, tags: Sequence[str]) -> List[str]:
    """The ids of all purges that reach an object."""
    space, target = split(key)
    name = space.partition("//")[2].partition(":")[0]
    before = f"//{name}" if name else ""
    path = target.partition("#")[0].partition("?")[0]
    ids = [before + path[: at + 1] for at, char in enumerate(path) if char == "/"]
    return ids + [f"{before}#{tag}" for tag in tags]
