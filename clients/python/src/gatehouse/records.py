"""Objects and devices, and their records in Redis: docs/redis-contract.md, section Records."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .errors import CorruptError, InvalidError
from .keys import canonical

MAX_BODY = 1 << 20
MAX_VERSION = 2**53 - 1
MAX_OWN_VERSION = 2**52  # the highest that a writer gives itself
_LAST_MS = 253402300799999  # the end of datetime's years
Fields = Dict[str, Union[str, bytes]]
Headers = Union[Mapping[str, str], Sequence[Tuple[str, str]]]
_PERMISSION = re.compile("[A-Za-z0-9._:-]{1,64}")
TAG = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()+;=%-]{1,64}")
_LABEL = re.compile("[a-z0-9._-]{1,32}=[A-Za-z0-9._:-]{0,64}")
_COMPRESSED = re.compile(
    "(image|video|audio)/.*|font/woff2?"
    "|application/(zip|gzip|x-gzip|zstd|x-7z-compressed|x-bzip2|x-xz|vnd[.]rar)"
)
_UNCOMPRESSED = re.compile("image/(svg[+]xml|bmp|x-ms-bmp|x-icon|vnd[.]microsoft[.]icon|tiff)|audio/wave?")


class Receipt(NamedTuple):
    """A recorded write: the new version of the record, and the write's sequence number in its shard."""

    version: int
    seq: int


@dataclass(frozen=True)
class Object:
    """An answer that the edges serve for a key."""

    key: str
    body: bytes
    content_type: str
    #: Until when it is served; None: until it changes.
    ttl: Optional[timedelta] = None
    #: 200, 301, 302, 307, 308, 404 or 410.
    status: int = 200
    #: Response headers besides Content-Type.
    headers: Headers = ()
    #: What `purge` can name.
    tags: Sequence[str] = ()
    #: A strong entity-tag with its quotes; by default one of all that a 304 doesn't repeat.
    etag: str = ""
    #: Your own version, which must exceed every earlier one of the key; 0: the next one.
    version: int = 0
    #: Write only if the stored record has this version.
    if_version: Optional[int] = None
    #: Write only if there is no object.
    if_absent: bool = False


@dataclass(frozen=True)
class StoredObject:
    """An object as Redis has it."""

    key: str
    body: bytes
    content_type: str
    version: int
    published: datetime
    etag: str
    ttl: Optional[timedelta]
    status: int
    headers: List[Tuple[str, str]]
    tags: List[str]
    #: The body by content coding: gzip, br, zstd.
    encodings: Dict[str, bytes] = field(repr=False)
    #: A soft purge reaches it: it counts as expired.
    stale: bool = False


@dataclass(frozen=True)
class StoredDevice:
    """A device as Redis has it."""

    id: str
    version: int
    published: datetime
    #: It is refused with any credential.
    disabled: bool
    #: A revocation disabled it.
    revoked: bool
    permissions: List[str]
    labels: Dict[str, str]
    not_after: Optional[datetime]
    #: Until when secrets before the newest count; None: for ever.
    old_until: Optional[datetime]
    hashes: List[str] = field(repr=False)


def default_etag(content_type: str, body: bytes, status: int = 200, headers: str = "") -> str:
    """The default entity-tag. `headers` are lines as the record has them."""
    if status == 200 and not headers:
        head = content_type + "\n"
    else:
        head = f"{content_type}\x00{status}\n{headers}\n"
    return '"' + hashlib.sha256(head.encode() + body).digest()[:16].hex() + '"'


def object_fields(o: Object) -> Fields:
    """The record of an object. What write.lua checks isn't checked here."""
    key = canonical(o.key)
    if len(o.body) > MAX_BODY:
        raise InvalidError(f"body of {key!r}: {len(o.body)} bytes, at most {MAX_BODY} are allowed")
    check_version(o.version)
    if o.if_version is not None:
        check_version(o.if_version)
    if (o.version != 0) + (o.if_version is not None) + o.if_absent > 1:
        raise InvalidError(f"{key!r}: give one of version, if_version and if_absent")
    pairs = list(o.headers.items() if isinstance(o.headers, Mapping) else o.headers)
    for name, value in pairs:
        if "\n" in name + value or ":" in name:
            raise InvalidError(f"header {name[:64]!r} of {key!r}: has a line end, or a colon in its name")
    headers = "\n".join(f"{name.lower()}: {value}" for name, value in pairs)
    if isinstance(o.tags, str):
        raise InvalidError(f"tags {o.tags!r} of {key!r}: want a list")
    for tag in o.tags:
        if not TAG.fullmatch(tag):
            raise InvalidError(f"tag {tag[:65]!r} of {key!r}: want 1 to 64 of a URI's characters other than , and *")
    try:
        content_type = o.content_type.encode("ascii").decode()
        headers.encode("ascii")
    except UnicodeEncodeError:
        raise InvalidError(f"content type or headers of {key!r}: want printable ASCII") from None
    fields: Fields = {
        "etag": o.etag or default_etag(content_type, o.body, o.status, headers),
        "content-type": content_type,
        "body": o.body,
    }
    if o.ttl is not None:
        fields["ttl"] = str(_whole_ms(f"ttl {o.ttl} of {key!r}", o.ttl))
    if o.status != 200:
        fields["status"] = str(o.status)
    if headers:
        fields["headers"] = headers
    if o.tags:
        fields["tags"] = ",".join(sorted(set(o.tags)))
    fields.update(encode(o.body, content_type))
    return fields


def _whole_ms(what: str, duration: timedelta) -> int:
    if not isinstance(duration, timedelta):
        raise InvalidError(f"{what}: want a timedelta")
    ms, rest = divmod(duration, timedelta(milliseconds=1))
    if ms < 1 or rest:
        raise InvalidError(f"{what}: want whole milliseconds, 1 at least")
    return ms


def check_version(version: int) -> None:
    if not 0 <= version <= MAX_VERSION:
        raise InvalidError(f"version {version}: is out of 0 to {MAX_VERSION}")


def _coders() -> Dict[str, Callable[[bytes], bytes]]:
    coders: Dict[str, Callable[[bytes], bytes]] = {"body.gzip": lambda body: gzip.compress(body, mtime=0)}
    try:
        import brotli  # type: ignore[import-untyped,unused-ignore]

        coders["body.br"] = lambda body: bytes(brotli.compress(body, quality=9))
    except ImportError:
        pass
    try:
        import zstandard

        coders["body.zstd"] = lambda body: zstandard.ZstdCompressor(level=19).compress(body)
    except ImportError:
        pass
    return coders


_CODERS = _coders()


def encode(body: bytes, content_type: str) -> Fields:
    """The fields of all encodings that are smaller than the body."""
    media = content_type.partition(";")[0].strip().lower()
    if _COMPRESSED.fullmatch(media) and not _UNCOMPRESSED.fullmatch(media):
        return {}
    encoded = {name: coder(body) for name, coder in _CODERS.items()}
    return {name: data for name, data in encoded.items() if len(data) < len(body)}


def unix_ms(what: str, time: datetime) -> str:
    if time.tzinfo is None:
        raise InvalidError(f"{what} {time}: want a time with its time zone")
    ms = (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
    if not 1 <= ms <= MAX_VERSION:
        raise InvalidError(f"{what} {time}: want a time after 1970")
    return str(ms)


def permissions_field(id: str, names: Sequence[str]) -> Fields:
    for name in names:
        if not _PERMISSION.fullmatch(name):
            raise InvalidError(f"permission {name[:65]!r} of {id!r}: want 1 to 64 of letters, digits and . _ : -")
    if len(set(names)) > 64:
        raise InvalidError(f"permissions of {id!r}: {len(set(names))} names, at most 64 are allowed")
    return {"permissions": ",".join(sorted(set(names)))} if names else {}


def labels_field(id: str, labels: Mapping[str, str]) -> Fields:
    pairs = [f"{name}={labels[name]}" for name in sorted(labels)]
    for pair in pairs:
        if not _LABEL.fullmatch(pair):
            raise InvalidError(
                f"label {pair[:100]!r} of {id!r}: want a name of 1 to 32 of a-z, 0-9 and . _ -, and a value of at most "
                "64 letters, digits and . _ : -"
            )
    return {"labels": ",".join(pairs)} if pairs else {}


def _time(ms: Optional[bytes]) -> Optional[datetime]:
    return None if ms is None else datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=min(int(ms), _LAST_MS))


def _split(text: Optional[bytes], separator: str) -> List[str]:
    return text.decode().split(separator) if text else []


def parse_object(key: str, record: Dict[str, bytes], stale: bool) -> StoredObject:
    try:
        published = _time(record["published"])
        assert published is not None
        return StoredObject(
            key=key,
            body=record["body"],
            content_type=record["content-type"].decode(),
            version=int(record["version"]),
            published=published,
            etag=record["etag"].decode(),
            ttl=timedelta(milliseconds=int(record["ttl"])) if "ttl" in record else None,
            status=int(record.get("status", b"200")),
            headers=[_pair(line, ": ") for line in _split(record.get("headers"), "\n")],
            tags=_split(record.get("tags"), ","),
            encodings={name[5:]: data for name, data in record.items() if name.startswith("body.")},
            stale=stale,
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise CorruptError(f"record of {key!r}: {error}") from error


def parse_device(id: str, record: Dict[str, bytes]) -> StoredDevice:
    try:
        published = _time(record["published"])
        assert published is not None
        return StoredDevice(
            id=id,
            version=int(record["version"]),
            published=published,
            disabled="disabled" in record,
            revoked=record.get("disabled") == b"revoked",
            permissions=_split(record.get("permissions"), ","),
            labels=dict(_pair(pair, "=") for pair in _split(record.get("labels"), ",")),
            not_after=_time(record.get("not-after")),
            old_until=_time(record.get("old-until")),
            hashes=_split(record.get("hash"), "\n"),
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise CorruptError(f"record of device {id!r}: {error}") from error


def _pair(text: str, separator: str) -> Tuple[str, str]:
    name, _, value = text.partition(separator)
    return name, value


def strings(record: Any) -> Dict[str, bytes]:
    """The reply of HGETALL with names as text: a dict, or a list of names and values."""
    pairs = record.items() if isinstance(record, dict) else zip(record[::2], record[1::2])
    return {name.decode() if isinstance(name, bytes) else name: value for name, value in pairs}
