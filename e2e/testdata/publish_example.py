"""Publishes objects and device credentials for Gatehouse: the worked example of
docs/redis-contract.md. Its packages are in requirements.txt beside it.

    publish_example.py REDIS_URL put KEY FILE CONTENT_TYPE [VERSION [TTL_MS]]
    publish_example.py REDIS_URL delete KEY [VERSION]
    publish_example.py REDIS_URL register DEVICE [PERMISSION ...]   (the secret on standard input)
    publish_example.py REDIS_URL revoke DEVICE

GATEHOUSE_REDIS_NAMESPACE sets the namespace. Prints the version and the sequence number of the write.
"""

import gzip
import hashlib
import os
import pathlib
import re
import secrets
import sys
import zlib

import bcrypt
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# The one script of every write. A program outside the repository brings a copy of it.
WRITE_LUA = pathlib.Path(__file__).parents[2] / "clients" / "go" / "publish" / "write.lua"
DEVICE = "[!#-+.0->@-~-]{1,128}"
HOST = "[a-z0-9._-]{1,253}|\\[[0-9a-f:.]{1,251}\\]"
VIRTUAL_HOST = f"//([a-z0-9_-]{{1,64}}|[a-z0-9_-]{{0,64}}:({HOST}))"
MEMBER = re.compile(f"o:(@{DEVICE})?({VIRTUAL_HOST}/|/(?!/))[!-~]*|c:{DEVICE}")
CONTENT_TYPE = re.compile("[!-~]([ -~]{0,253}[!-~])?")
NAMESPACE = re.compile("[a-z0-9][a-z0-9-]{0,31}")
PERMISSION = re.compile("[A-Za-z0-9._:-]{1,64}")
SECRET = re.compile(rb"(?!\xef\xbb\xbf)[^\x00- \x7f]([^\x00-\x1f\x7f]*[^\x00- \x7f])?")
MAX_KEY = 2048
MAX_PAIRS = 64
MAX_BODY = 1 << 20
MAX_SECRET = 72
MAX_PERMISSIONS = 64
TOMBSTONE_LIFE_MS = 24 * 60 * 60 * 1000


class Publisher:
    """Writes to all shards. Their number and the namespace are the same for all writers and sidecars."""

    def __init__(self, client, shards=1, cluster=False, namespace="", author="publish_example.py"):
        if namespace and not NAMESPACE.fullmatch(namespace):
            raise ValueError(f"namespace {namespace!r}: want 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit")
        self.prefix = "{gatehouse" + ("." + namespace if namespace else "") + ":%d}:"
        number = self.prefix % 0 + "shards"
        stored = client.get(number)
        if stored is None:  # only then: a Redis that is full refuses SET, also with NX
            client.set(number, shards, nx=True)
            stored = client.get(number)
        if int(stored) != shards:
            raise ValueError(f"Redis has {int(stored)} shards, this program is set to {shards}")
        self.shards = shards
        self.author = author  # of changes of devices
        # Channels don't know databases.
        database = 0 if cluster else client.connection_pool.connection_kwargs.get("db", 0)
        self.channel = f"events:{database}" if database else "events"
        self.publish = "SPUBLISH" if cluster else "PUBLISH"
        self.script = client.register_script(WRITE_LUA.read_text())

    def write(self, mode, member, fields, version=0):
        """Runs the script: all of the write, or nothing. Gives (version, seq)."""
        if not MEMBER.fullmatch(member) or len(member) > len("o:") + MAX_KEY:
            raise ValueError(f"{member!r}: want o:/path, o:@device/path, o://virtual-host/path or c:device, at most {MAX_KEY} bytes")
        expiry_ms = TOMBSTONE_LIFE_MS if "deleted" in fields else 0
        shard = zlib.crc32(member[2:].encode()) % self.shards
        prefix = self.prefix % shard
        keys = [prefix + name for name in (member, "seq", "log", "epoch", "chain")]
        traceparent = ""
        args = [mode, version, secrets.token_hex(16), member, expiry_ms, prefix + self.channel, self.publish, traceparent]
        if member.startswith("c:"):
            keys.append(prefix + "audit")
            args.append(self.author)
        for field, value in fields.items():
            args += [field, value]
        return tuple(self.script(keys=keys, args=args))

    def put(self, key, body, content_type, version=0, ttl_ms=0):
        """Publishes an object in the encodings that make it smaller; here that is gzip."""
        key = one_spelling(key)
        if key != canonical_key(key):
            raise ValueError(f"key {key!r}: the edge looks up {canonical_key(key)!r}")
        if key.partition("?")[2].count("&") >= MAX_PAIRS:
            raise ValueError(f"key {key!r}: more than {MAX_PAIRS} parameters, which the edge doesn't look up")
        if not CONTENT_TYPE.fullmatch(content_type):
            raise ValueError(f"content type {content_type!r}: want 1 to 255 bytes of printable ASCII without a blank at an end")
        if len(body) > MAX_BODY:
            raise ValueError(f"body of {key!r}: {len(body)} bytes, at most {MAX_BODY} are allowed")
        # Over all that a 304 doesn't repeat, so that caches don't keep an old content type.
        etag = '"' + hashlib.sha256(content_type.encode() + b"\n" + body).digest()[:16].hex() + '"'
        fields = {"etag": etag, "content-type": content_type, "body": body}
        zipped = gzip.compress(body, mtime=0)
        if len(zipped) < len(body):
            fields["body.gzip"] = zipped
        if ttl_ms:
            fields["ttl"] = ttl_ms
        return self.write("replace", "o:" + key, fields, version)

    def delete(self, key, version=0):
        """Makes the edges forget an object, or keeps a late put of one that isn't there from bringing it back."""
        return self.write("replace", "o:" + one_spelling(key), {"deleted": 1}, version)

    def register(self, device, secret, permissions=()):
        """Registers a device, or replaces its credential."""
        if not SECRET.fullmatch(secret) or len(secret) > MAX_SECRET:
            raise ValueError(f"secret of {device!r}: {len(secret)} bytes, want 1 to {MAX_SECRET} that a header can carry")
        for name in permissions:
            if not PERMISSION.fullmatch(name):
                raise ValueError(f"permission {name!r} of {device!r}: want 1 to 64 of letters, digits and . _ : -")
        if len(set(permissions)) > MAX_PERMISSIONS:
            raise ValueError(f"permissions of {device!r}: {len(set(permissions))} names, at most {MAX_PERMISSIONS} are allowed")
        fields = {"hash": bcrypt.hashpw(secret, bcrypt.gensalt(12))}
        if permissions:
            fields["permissions"] = ",".join(sorted(set(permissions)))
        return self.write("replace", "c:" + device, fields)

    def revoke(self, device):
        """Refuses a device from now on; the rest of its record stays."""
        return self.write("merge", "c:" + device, {"disabled": "revoked"})


def split(key):
    """What precedes the path of a key: device, virtual host and host; and the path with its query."""
    space = re.match("(@[^/]*)?(//[^/]*(?=/))?", key)[0]
    return space, key[len(space) :]


def one_spelling(key):
    """A key whose host is in lower case, and path and query have the hex digits of their escapes in upper case."""
    space, target = split(key)
    device, slashes, host = space.partition("//")
    name, colon, host = host.partition(":")
    target = re.sub("%[0-9A-Fa-f]{2}", lambda escape: escape[0].upper(), target)
    return device + slashes + name + colon + host.lower() + target


def canonical_key(key):
    """A key as the edge looks it up: what Envoy makes of a path, and the query sorted by name, without empty pairs."""
    space, target = split(key)
    path, _, query = target.partition("#")[0].partition("?")
    path = re.sub("%[0-9A-F]{2}", lambda escape: decode(escape[0]), path).replace("\\", "/")
    parts = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del parts[-1:]
        elif segment not in ("", "."):
            parts.append(segment)
    if parts and segments[-1] in ("", ".", ".."):
        parts.append("")
    pairs = sorted(filter(None, query.split("&")), key=lambda pair: pair.partition("=")[0])
    return space + "/" + "/".join(parts) + ("?" + "&".join(pairs) if pairs else "")


def decode(escape):
    """What Envoy makes of an escape: it decodes those of letters, digits and -._~, and refuses those of slashes."""
    char = chr(int(escape[1:], 16))
    return char if re.fullmatch("[A-Za-z0-9._~/\\\\-]", char) else escape


def main(url, command, name, *rest):
    # Without retries: a write that was applied, but not answered, would meet its own version.
    client = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0))
    publisher = Publisher(client, namespace=os.environ.get("GATEHOUSE_REDIS_NAMESPACE", ""))
    if command == "put" and len(rest) >= 2:
        file, content_type, *numbers = rest
        return publisher.put(name, pathlib.Path(file).read_bytes(), content_type, *map(int, numbers))
    if command == "delete":
        return publisher.delete(name, *map(int, rest))
    if command == "register":
        return publisher.register(name, sys.stdin.buffer.readline().rstrip(b"\r\n"), rest)
    if command == "revoke":
        return publisher.revoke(name)
    sys.exit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        print(*main(*sys.argv[1:]))
    except (redis.RedisError, ValueError, OSError) as error:
        sys.exit(f"publish_example.py: {error}")
