"""All operations, without input and output. Each is a generator that yields what it needs, and gets the outcome:

- a list of commands, to be sent at once: a list of their replies, an exception for each that failed
- a function that takes long: its result
- seconds to wait: nothing

Publisher and AsyncPublisher run them."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import secrets
import socket
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib import resources
from typing import (
    Any, Callable, Dict, Generator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union,
)

from redis.exceptions import ResponseError

from . import hashes
from .errors import (
    ExistsError, FullError, GatehouseError, InvalidError, NotFoundError, ShardsError, StaleError,
)
from .keys import canonical, check_device_id, purges_of, shard_of
from .records import (
    MAX_OWN_VERSION, TAG, Fields, Object, Receipt, StoredDevice, StoredObject, check_version, labels_field,
    object_fields, parse_device, parse_object, permissions_field, strings, unix_ms,
)

WRITE_LUA = resources.read_text(__package__, "write.lua", encoding="utf-8")
SHA1 = hashlib.sha1(WRITE_LUA.encode()).hexdigest()
Command = Tuple[Union[str, bytes, int], ...]
Request = Union[List[Command], Callable[[], Any], float]
T = TypeVar("T")
Steps = Generator[Request, Any, T]
Result = Union[Receipt, Exception]

TOMBSTONE_LIFE_MS = 24 * 60 * 60 * 1000
ATTEMPTS = 10  # of a change whose record is written meanwhile
MOST_RECORDS, MOST_BYTES = 512, 4 << 20  # at once
MOVING = ("TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN")  # a Cluster moves the slot, and executed nothing
MOVING_FOR = 5.0  # seconds
_NAMESPACE = re.compile("[a-z0-9][a-z0-9-]{0,31}")


class Mutation(NamedTuple):
    """A write of one record."""

    mode: str
    member: str
    fields: Fields
    version: str = "0"


class State(NamedTuple):
    """A member in Redis."""

    there: bool  # it has a record other than a tombstone
    deleted: bool  # it has a tombstone
    logged: bool  # the log has an entry
    version: int  # of the record or tombstone, 0 for neither


def default_author() -> str:
    try:
        user = getpass.getuser()
    except Exception:  # no entry for the user's number
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()}"


def code(error: object) -> str:
    """The first word of an error of Redis."""
    kind = type(error).__name__
    if not isinstance(error, ResponseError):
        return ""
    known = {"NoScriptError": "NOSCRIPT", "OutOfMemoryError": "OOM", "NoPermissionError": "NOPERM"}
    # redis-py takes the code of these away.
    known.update({"AskError": "ASK", "MovedError": "MOVED"})
    known.update({"TryAgainError": "TRYAGAIN", "ClusterDownError": "CLUSTERDOWN"})
    return known.get(kind) or str(error).partition(" ")[0]


def translate(error: Exception) -> Exception:
    """This package's error for one of the script."""
    text = str(error).partition(" ")[2]
    kinds = {"STALE": StaleError, "EXISTS": ExistsError, "INVALID": InvalidError, "LIMIT": InvalidError}
    word = code(error)
    if word in kinds:
        return kinds[word](text)
    if word == "ABSENT":
        return NotFoundError("no such record: " + text)
    if word == "OOM":
        return FullError("redis is full (maxmemory): nothing was written; only deletions and revocations succeed")
    return error


def good(replies: List[Any]) -> List[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise translate(reply)
    return replies


class Operations:
    def __init__(self, shards: int, namespace: str, author: Optional[str], database: int, cluster: bool) -> None:
        if not 1 <= shards <= 64:
            raise InvalidError(f"shards: {shards} is out of 1 to 64")
        if namespace and not _NAMESPACE.fullmatch(namespace):
            raise InvalidError(
                f"namespace {namespace!r}: want 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit"
            )
        self.shards = shards
        self.name = "gatehouse" + ("." + namespace if namespace else "")
        self.author = default_author() if author is None else author
        self.channel = "events" if cluster or not database else f"events:{database}"
        self.publish = "SPUBLISH" if cluster else "PUBLISH"
        self.agreed = False

    def prefix(self, shard: int) -> str:
        return "{%s:%d}:" % (self.name, shard)

    def record_key(self, member: str) -> str:
        return self.prefix(shard_of(member[2:], self.shards)) + member

    # Runs of the script.

    def agree(self) -> Steps[None]:
        """Compares the number of shards with the one in Redis, and stores it there if there is none."""
        if self.agreed:
            return
        key = self.prefix(0) + "shards"
        (stored,) = good((yield [("GET", key)]))
        if stored is None:  # only then: a Redis that is full refuses SET, also with NX
            good((yield [("SET", key, self.shards, "NX")]))
            (stored,) = good((yield [("GET", key)]))
        if int(stored) != self.shards:
            raise ShardsError(f"{key} is {int(stored)}, this program is set to {self.shards} (shards)")
        self.agreed = True

    def check_shards(self) -> Steps[None]:
        """Fails if Redis has another number of shards: what is missing may be in another one."""
        (stored,) = good((yield [("GET", self.prefix(0) + "shards")]))
        if stored is not None and int(stored) != self.shards:
            raise ShardsError(f"{self.prefix(0)}shards is {int(stored)}, this program is set to {self.shards} (shards)")

    def call(self, m: Mutation, shard: int, audited: bool) -> Command:
        """The arguments of a run, after the script."""
        prefix = self.prefix(shard)
        keys = [prefix + name for name in (m.member, "seq", "log", "epoch", "chain")]
        expiry = TOMBSTONE_LIFE_MS if "deleted" in m.fields else 0
        args: List[Union[str, bytes, int]] = [
            m.mode, m.version, secrets.token_hex(16), m.member, expiry, prefix + self.channel, self.publish, "",
        ]
        if audited:
            keys.append(prefix + "audit")
            args.append(self.author)
        for name, value in m.fields.items():
            args += [name, value]
        return (len(keys), *keys, *args)

    def run(self, calls: Sequence[Command]) -> Steps[List[Any]]:
        """Runs the script for each call. A reply that is an exception means that nothing was written."""
        replies: List[Any] = [None] * len(calls)
        pending = list(range(len(calls)))
        begin, pause = time.monotonic(), 0.005
        while True:
            answers = yield [("EVALSHA", SHA1, *calls[i]) for i in pending]
            for i, answer in zip(pending, answers):
                replies[i] = answer
            # The script itself, once for each shard whose server doesn't know it.
            missing = [i for i in reversed(pending) if code(replies[i]) == "NOSCRIPT"]
            unknown = {str(calls[i][1]).partition("}")[0]: i for i in missing}
            if unknown:
                first = list(unknown.values())
                for i, answer in zip(first, (yield [("EVAL", WRITE_LUA, *calls[i]) for i in first])):
                    replies[i] = answer
            pending = [i for i in pending if code(replies[i]) in MOVING + ("NOSCRIPT",)]
            if not pending or time.monotonic() - begin > MOVING_FOR:
                return replies
            if not unknown:
                yield pause
                pause = min(2 * pause, 0.2)

    def write_all(self, mutations: Sequence[Mutation], shards: Optional[Sequence[int]] = None) -> Steps[List[Result]]:
        """Runs the script for each mutation, each atomic by itself, many in one round trip."""
        if not mutations:
            return []
        yield from self.agree()
        at = shards or [shard_of(m.member[2:], self.shards) for m in mutations]
        results: List[Result] = []
        part: List[int] = []
        size = 0
        for i, m in enumerate(mutations):
            more = sum(map(len, m.fields.values()))
            if part and (len(part) == MOST_RECORDS or size + more > MOST_BYTES):
                results += yield from self._write_part([(mutations[n], at[n]) for n in part])
                part, size = [], 0
            part.append(i)
            size += more
        results += yield from self._write_part([(mutations[n], at[n]) for n in part])
        return results

    def _write_part(self, part: List[Tuple[Mutation, int]]) -> Steps[List[Result]]:
        device = [m.member.startswith("c:") for m, _ in part]
        replies = yield from self.run([self.call(m, shard, device[i]) for i, (m, shard) in enumerate(part)])
        # Perhaps only the audit's key isn't permitted or, in a slot that moves, isn't there: a revocation must not
        # need it.
        again = [i for i, reply in enumerate(replies) if device[i] and code(reply) in MOVING + ("NOPERM",)]
        if again:
            unaudited = yield from self.run([self.call(*part[i], False) for i in again])
            for i, reply in zip(again, unaudited):
                replies[i] = reply
        results: List[Result] = []
        for reply in replies:
            if isinstance(reply, Exception):
                results.append(translate(reply))
            else:
                results.append(Receipt(int(reply[0]), int(reply[1])))
                if reply[1] == 1:
                    self.agreed = False  # the shard was empty: Redis may have lost its data, and the number of shards
        return results

    def write(self, m: Mutation) -> Steps[Receipt]:
        (result,) = yield from self.write_all([m])
        if isinstance(result, Exception):
            raise result
        return result

    # Objects.

    def put_many(self, objects: Sequence[Object]) -> Steps[List[Result]]:
        results: List[Result] = [NotFoundError("")] * len(objects)
        mutations: Dict[int, Mutation] = {}
        for i, o in enumerate(objects):
            try:
                fields = yield partial(object_fields, o)
            except GatehouseError as error:
                results[i] = error
                continue
            version = str(o.version) if o.if_version is None else f"={o.if_version}"
            mutations[i] = Mutation("replace", "o:" + canonical(o.key), fields, version)
        absent = [i for i in mutations if objects[i].if_absent]
        plain = [i for i in mutations if not objects[i].if_absent]
        written = yield from self.write_all([mutations[i] for i in plain])
        for i, result in zip(plain, written):
            results[i] = result
        for _ in range(ATTEMPTS):
            free: List[int] = []
            for i, (live, stored) in zip(absent, (yield from self._live([mutations[i].member for i in absent]))):
                if live:
                    results[i] = ExistsError(f"{mutations[i].member[2:]!r} has version {stored}")
                else:
                    free.append(i)
                    mutations[i] = mutations[i]._replace(version=f"={stored}")
            written = yield from self.write_all([mutations[i] for i in free])
            for i, result in zip(free, written):
                results[i] = result
            absent = [i for i in free if isinstance(results[i], StaleError)]
            if not absent:
                break
        return results

    def put(self, o: Object) -> Steps[Receipt]:
        (result,) = yield from self.put_many([o])
        if isinstance(result, Exception):
            raise result
        return result

    def _live(self, members: Sequence[str]) -> Steps[List[Tuple[bool, int]]]:
        """Whether there is an object that is neither deleted nor purged, and its version, 0 for none."""
        if not members:
            return []
        yield from self.check_shards()
        names = ("version", "deleted", "tags", "seq")
        values = good((yield [("HGET", self.record_key(m), name) for m in members for name in names]))
        live: List[Tuple[bool, int]] = []
        for i, m in enumerate(members):
            version, deleted, tags, seq = values[4 * i : 4 * i + 4]
            there = version is not None and deleted is None
            if there:
                hard, _ = yield from self._purged(m[2:], tags, seq)
                there = not hard
            live.append((there, int(version or 0)))
        return live

    def _purged(self, key: str, tags: Optional[bytes], seq: Optional[bytes]) -> Steps[Tuple[bool, bool]]:
        """Whether a hard, and a soft purge reach an object."""
        prefix = self.prefix(shard_of(key, self.shards))
        ids = purges_of(key, tags.decode().split(",") if tags else [])
        at = good((yield [("HGET", f"{prefix}p:{id}", kind) for kind in ("hard", "soft") for id in ids]))
        reached = [number is not None and int(number) >= int(seq or 0) for number in at]
        return any(reached[: len(ids)]), any(reached[len(ids) :])

    def get(self, key: str) -> Steps[StoredObject]:
        key = canonical(key)
        (reply,) = good((yield [("HGETALL", self.record_key("o:" + key))]))
        record = strings(reply)
        if not record:
            yield from self.check_shards()
        hard = stale = False
        if record and "deleted" not in record:
            hard, stale = yield from self._purged(key, record.get("tags"), record.get("seq"))
        if not record or "deleted" in record or hard:
            raise NotFoundError(f"no object {key!r}")
        return parse_object(key, record, stale)

    def delete_many(self, keys: Sequence[str], version: int = 0) -> Steps[List[Result]]:
        results: List[Result] = [NotFoundError("")] * len(keys)
        good_keys: Dict[int, str] = {}
        for i, key in enumerate(keys):
            try:
                good_keys[i] = canonical(key)
                check_version(version)
            except GatehouseError as error:
                results[i] = error
        written = yield from self.write_all(
            [Mutation("replace", "o:" + key, {"deleted": "1"}, str(version)) for key in good_keys.values()]
        )
        for i, result in zip(good_keys, written):
            results[i] = result
        return results

    def delete(self, key: str, version: int) -> Steps[Receipt]:
        (result,) = yield from self.delete_many([key], version)
        if isinstance(result, Exception):
            raise result
        return result

    def purge(self, tag: str, prefix: str, all: bool, virtual_host: str, soft: bool) -> Steps[None]:
        if bool(tag) + bool(prefix) + all != 1:
            raise InvalidError("purge: give one of tag, prefix and all")
        if tag and not TAG.fullmatch(tag):
            raise InvalidError(f"tag {tag[:65]!r}: want 1 to 64 of a URI's characters other than , and *")
        what = f"#{tag}" if tag else prefix if prefix else "/"
        if not tag and not what.endswith("/"):
            raise InvalidError(f"prefix {prefix!r}: want a path that ends with /")
        id = f"//{virtual_host}{what}" if virtual_host else what
        if not tag:
            canonical(id)
        fields: Fields = {"soft" if soft else "hard": "1"}
        results = yield from self.write_all(
            [Mutation("purge", "p:" + id, fields)] * self.shards, range(self.shards)
        )
        good(results)

    # Devices.

    def hash(self, secret: str, cost: int, pepper: Optional[hashes.Pepper]) -> Steps[str]:
        hashed: str = yield lambda: hashes.hash_secret(secret, cost, pepper)
        return hashed

    def put_device(
        self, id: str, secret: Optional[str], given: Sequence[str], permissions: Sequence[str],
        labels: Mapping[str, str], not_after: Optional[datetime], disabled: bool, version: int, cost: int,
        pepper: Optional[hashes.Pepper], replace: bool,
    ) -> Steps[Receipt]:
        check_device_id(id)
        check_version(version)
        if id.startswith("*"):
            raise InvalidError(f"device {id!r}: ids that begin with * are for invalidations")
        if secret is not None and given or secret is None and not given and not disabled:
            raise InvalidError(f"device {id!r}: give a secret, or hashes")
        fields: Fields = {}
        if disabled:
            fields["disabled"] = "1"
        fields.update(permissions_field(id, permissions))
        fields.update(labels_field(id, labels))
        if not_after is not None:
            fields["not-after"] = unix_ms(f"not_after of {id!r}", not_after)
        if secret is not None:
            hashes.check_secret(id, secret)
            fields["hash"] = yield from self.hash(secret, cost, pepper)
        elif given:
            fields["hash"] = "\n".join(given)
        mode = "replace" if replace else "add"
        return (yield from self.write(Mutation(mode, "c:" + id, fields, str(version))))

    def _device_record(self, id: str) -> Steps[Dict[str, bytes]]:
        check_device_id(id)
        (reply,) = good((yield [("HGETALL", self.record_key("c:" + id))]))
        record = strings(reply)
        if not record:
            yield from self.check_shards()
        if not record or "deleted" in record:
            raise NotFoundError(f"no device {id!r}")
        return record

    def get_device(self, id: str) -> Steps[StoredDevice]:
        return parse_device(id, (yield from self._device_record(id)))

    def _change(
        self, id: str, if_version: Optional[int],
        change: Callable[[Dict[str, bytes]], Optional[Fields]],
    ) -> Steps[Receipt]:
        """Writes what change makes of the record; nothing if that is None."""
        for attempt in range(ATTEMPTS):
            record = yield from self._device_record(id)
            version = parse_device(id, record).version
            if if_version is not None and version != if_version:
                raise StaleError(f"device {id!r} has version {version}, want {if_version}")
            fields = change({k: v for k, v in record.items() if k not in ("version", "published", "seq")})
            if fields is None:
                return Receipt(version, 0)
            try:  # stale if the record was written meanwhile, or Redis has lost it
                return (yield from self.write(Mutation("replace", "c:" + id, fields, f"={version}")))
            except StaleError:
                if if_version is not None or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def rotate_device(
        self, id: str, secret: str, overlap: Optional[timedelta], if_version: Optional[int], cost: int,
        pepper: Optional[hashes.Pepper],
    ) -> Steps[Receipt]:
        check_device_id(id)
        hashes.check_secret(id, secret)
        if overlap is not None and overlap < timedelta(milliseconds=1):
            raise InvalidError(f"overlap {overlap} of {id!r}: want a millisecond at least, or none")
        hashed = yield from self.hash(secret, cost, pepper)
        before = (yield from self._device_record(id)).get("hash", b"").decode().partition("\n")[0]
        if before and (yield lambda: hashes.matches(before, secret, pepper)):
            raise InvalidError(f"secret of {id!r}: is the current one")

        def change(record: Dict[str, bytes]) -> Optional[Fields]:
            current = record.get("hash", b"").decode().partition("\n")[0]
            if current == hashed:
                return None  # an attempt before was applied, and its reply lost
            fields: Fields = {**record, "hash": hashed}
            fields.pop("old-until", None)
            if overlap is not None and current:
                fields["hash"] = f"{hashed}\n{current}"
                fields["old-until"] = unix_ms("end of the overlap", datetime.now(timezone.utc) + overlap)
            return fields

        return (yield from self._change(id, if_version, change))

    def set_device(
        self, id: str, add: Sequence[str], remove: Sequence[str], labels: Mapping[str, Optional[str]],
        not_after: Union[datetime, str, None], disabled: Optional[bool], end_overlap: bool, if_version: Optional[int],
    ) -> Steps[Receipt]:
        def change(record: Dict[str, bytes]) -> Fields:
            stored = parse_device(id, {"version": b"1", "published": b"1", **record})
            fields: Fields = {k: v for k, v in record.items() if k not in ("permissions", "labels")}
            fields.update(permissions_field(id, sorted((set(stored.permissions) | set(add)) - set(remove))))
            merged = {k: v for k, v in {**stored.labels, **labels}.items() if v is not None}
            fields.update(labels_field(id, merged))
            if not_after == "never":
                fields.pop("not-after", None)
            elif isinstance(not_after, datetime):
                fields["not-after"] = unix_ms(f"not_after of {id!r}", not_after)
            elif not_after is not None:
                raise InvalidError(f"not_after of {id!r}: want a datetime, or \"never\"")
            if disabled:
                fields.setdefault("disabled", "1")
            elif disabled is not None:
                fields.pop("disabled", None)
            if end_overlap and "hash" in fields:
                fields["hash"] = stored.hashes[0]
                fields.pop("old-until", None)
            return fields

        return (yield from self._change(id, if_version, change))

    def _state(self, member: str) -> Steps[State]:
        prefix = self.prefix(shard_of(member[2:], self.shards))
        score, version, deleted = good((yield [
            ("ZSCORE", prefix + "log", member),
            ("HGET", prefix + member, "version"),
            ("HGET", prefix + member, "deleted"),
        ]))
        return State(
            version is not None and deleted is None, deleted is not None, score is not None, int(version or 0),
        )

    def revoke_device(self, id: str, force: bool) -> Steps[Receipt]:
        return (yield from self._withdraw(id, {"disabled": "revoked"}, force))

    def delete_device(self, id: str, force: bool) -> Steps[Receipt]:
        return (yield from self._withdraw(id, {"deleted": "1"}, force))

    def _withdraw(self, id: str, fields: Fields, force: bool) -> Steps[Receipt]:
        """Sets fields of a device's record, or writes a tombstone if there is none."""
        check_device_id(id)
        member = "c:" + id
        for _ in range(ATTEMPTS):
            try:
                return (yield from self.write(Mutation("merge", member, fields)))
            except NotFoundError:
                pass
            # Edges may have the device although its record is gone: a tombstone above the highest version that a writer can
            # have given, and above those counted after an earlier tombstone of this kind.
            state = yield from self._state(member)
            if not state.there and not force and (state.deleted or not state.logged):
                raise NotFoundError(f"no device {id!r}")
            try:
                above = MAX_OWN_VERSION + int(time.time() * 1_000_000)
                version = above if state.version < above else 0
                return (yield from self.write(Mutation("add", member, {"deleted": "1"}, str(version))))
            except (StaleError, ExistsError):  # written meanwhile
                continue
        raise StaleError(f"device {id!r} is written all the time")

    def invalidate(self, id: str) -> Steps[Receipt]:
        """Writes a tombstone where there is no record."""
        check_device_id(id)
        member = "c:" + id
        for attempt in range(ATTEMPTS):
            state = yield from self._state(member)
            if state.there:
                raise InvalidError(f"device {id!r} has a record, which decides about it: revoke or delete it")
            try:  # stale if a record was written meanwhile
                return (yield from self.write(Mutation("replace", member, {"deleted": "1"}, f"={state.version}")))
            except StaleError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def invalidate_device(self, id: str) -> Steps[Receipt]:
        if id.startswith("*"):
            raise InvalidError(f"device {id!r}: ids that begin with * are for invalidations")
        return (yield from self.invalidate(id))

    def invalidate_label(self, name: str, value: str) -> Steps[Receipt]:
        labels_field("*", {name: value})
        return (yield from self.invalidate(f"*{name}={value}"))
