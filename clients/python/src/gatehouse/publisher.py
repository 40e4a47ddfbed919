"""The publishers: blocking, and for asyncio."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any, List, Literal, Mapping, Optional, Sequence, TypeVar, Union

import redis
import redis.asyncio
from redis.exceptions import RedisError

from ._steps import Command, Operations, Steps
from .hashes import DEFAULT_COST, Pepper
from .records import Object, Receipt, StoredDevice, StoredObject

T = TypeVar("T")
_RAW = {"NEVER_DECODE": True}  # bodies are bytes, also for a client with decode_responses


class Publisher:
    """Writes to all shards, blocking. It is safe for concurrent use.

    `client` is yours: redis.Redis, also from Sentinel, or redis.RedisCluster.
    `shards` and `namespace` are the same for all writers and sidecars. `author` is who writes, for the audit of
    devices; by default user@host."""

    def __init__(
        self,
        client: Union[redis.Redis, redis.RedisCluster],
        *,
        shards: int = 1,
        namespace: str = "",
        author: Optional[str] = None,
    ) -> None:
        self._client: Any = client
        cluster = isinstance(client, redis.RedisCluster)
        self._operations = Operations(shards, namespace, author, 0 if cluster else _database(client), cluster)

    def _run(self, steps: Steps[T]) -> T:
        reply: Any = None
        error: Optional[Exception] = None
        while True:
            try:
                request = steps.throw(error) if error else steps.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            reply, error = None, None
            try:
                if callable(request):
                    reply = request()
                elif isinstance(request, float):
                    time.sleep(request)
                else:
                    reply = self._send(request)
            except Exception as failed:
                error = failed

    def _send(self, commands: List[Command]) -> List[Any]:
        if len(commands) == 1:  # also follows a failover of a Cluster
            try:
                return [self._client.execute_command(*commands[0], **_RAW)]
            except redis.ResponseError as error:
                return [error]
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command, **_RAW)
        replies: List[Any] = pipe.execute(raise_on_error=False)
        return _replies(replies)

    def put(self, object: Object) -> Receipt:
        """Publishes an object, with the encodings that are smaller than its body."""
        return self._run(self._operations.put(object))

    def put_many(self, objects: Sequence[Object]) -> List[Union[Receipt, Exception]]:
        """Publishes objects, some hundreds in one round trip. Each is written by itself, or its result is the error."""
        return self._run(self._operations.put_many(objects))

    def get(self, key: str) -> StoredObject:
        """The object as Redis has it."""
        return self._run(self._operations.get(key))

    def delete(self, key: str, *, version: int = 0) -> Receipt:
        """Makes the edges forget an object. A key that has none is no error: late puts with older versions fail."""
        return self._run(self._operations.delete(key, version))

    def delete_many(self, keys: Sequence[str]) -> List[Union[Receipt, Exception]]:
        """Deletes objects, as put_many publishes."""
        return self._run(self._operations.delete_many(keys))

    def purge(
        self, *, tag: str = "", prefix: str = "", all: bool = False, virtual_host: str = "", soft: bool = False
    ) -> None:
        """Removes all objects with a tag, below a path (a prefix ends with /), or all: those of a virtual host, or
        those of none. With `soft` they count as expired. What is published afterwards stays. After an error, repeat
        it."""
        self._run(self._operations.purge(tag, prefix, all, virtual_host, soft))

    def put_device(
        self,
        id: str,
        secret: Optional[str] = None,
        *,
        hashes: Sequence[str] = (),
        permissions: Sequence[str] = (),
        labels: Mapping[str, str] = {},
        not_after: Optional[datetime] = None,
        disabled: bool = False,
        version: int = 0,
        cost: int = DEFAULT_COST,
        pepper: Optional[Pepper] = None,
        replace: bool = True,
    ) -> Receipt:
        """Registers a device, or replaces its record, even a revoked one. Give its secret, or hashes that exist. A
        pepper stores the secret, which must be generated, as gh1. Without `replace` another record is an
        ExistsError, and for an equal one nothing is written: the receipt's seq is 0."""
        return self._run(
            self._operations.put_device(
                id, secret, hashes, permissions, labels, not_after, disabled, version, cost, pepper, replace
            )
        )

    def get_device(self, id: str) -> StoredDevice:
        """The device as Redis has it."""
        return self._run(self._operations.get_device(id))

    def rotate_device(
        self,
        id: str,
        secret: str,
        *,
        overlap: Optional[timedelta] = None,
        if_version: Optional[int] = None,
        cost: int = DEFAULT_COST,
        pepper: Optional[Pepper] = None,
    ) -> Receipt:
        """Gives a device a new secret. The one before stays valid until the overlap ends; without one it ends at
        once."""
        return self._run(self._operations.rotate_device(id, secret, overlap, if_version, cost, pepper))

    def set_device(
        self,
        id: str,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        labels: Mapping[str, Optional[str]] = {},
        not_after: Union[datetime, Literal["never"], None] = None,
        disabled: Optional[bool] = None,
        end_overlap: bool = False,
        if_version: Optional[int] = None,
    ) -> Receipt:
        """Changes a device, and keeps the rest of its record, also the secret: adds and removes permissions, sets
        labels (None removes one). disabled=False also ends a revocation."""
        return self._run(
            self._operations.set_device(id, add, remove, labels, not_after, disabled, end_overlap, if_version)
        )

    def revoke_device(self, id: str, *, force: bool = False) -> Receipt:
        """Refuses a device from now on. With `force` also one that Redis doesn't have, which edges may still know."""
        return self._run(self._operations.revoke_device(id, force))

    def delete_device(self, id: str, *, force: bool = False) -> Receipt:
        """Makes the edges forget a device."""
        return self._run(self._operations.delete_device(id, force))

    def invalidate_device(self, id: str) -> Receipt:
        """Ends the verdicts of an authority on a device: it is asked again at the next request."""
        return self._run(self._operations.invalidate_device(id))

    def invalidate_label(self, name: str, value: str) -> Receipt:
        """invalidate_device for all devices to which the authority gave a label."""
        return self._run(self._operations.invalidate_label(name, value))

    def invalidate_all(self) -> Receipt:
        """invalidate_device for all devices without a record."""
        return self._run(self._operations.invalidate("*"))


class AsyncPublisher:
    """Writes to all shards, for asyncio. It is safe for concurrent use.

    `client` is yours: redis.asyncio.Redis, also from Sentinel, or redis.asyncio.RedisCluster.
    `shards` and `namespace` are the same for all writers and sidecars. `author` is who writes, for the audit of
    devices; by default user@host."""

    def __init__(
        self,
        client: Union[redis.asyncio.Redis, redis.asyncio.RedisCluster],
        *,
        shards: int = 1,
        namespace: str = "",
        author: Optional[str] = None,
    ) -> None:
        self._client: Any = client
        cluster = isinstance(client, redis.asyncio.RedisCluster)
        self._operations = Operations(shards, namespace, author, 0 if cluster else _database(client), cluster)

    async def _run(self, steps: Steps[T]) -> T:
        reply: Any = None
        error: Optional[Exception] = None
        while True:
            try:
                request = steps.throw(error) if error else steps.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            reply, error = None, None
            try:
                if callable(request):
                    reply = await asyncio.to_thread(request)
                elif isinstance(request, float):
                    await asyncio.sleep(request)
                else:
                    reply = await self._send(request)
            except Exception as failed:
                error = failed

    async def _send(self, commands: List[Command]) -> List[Any]:
        if len(commands) == 1:  # also follows a failover of a Cluster
            try:
                return [await self._client.execute_command(*commands[0], **_RAW)]
            except redis.ResponseError as error:
                return [error]
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command, **_RAW)
        replies: List[Any] = await pipe.execute(raise_on_error=False)
        return _replies(replies)

    async def put(self, object: Object) -> Receipt:
        """Publishes an object, with the encodings that are smaller than its body."""
        return await self._run(self._operations.put(object))

    async def put_many(self, objects: Sequence[Object]) -> List[Union[Receipt, Exception]]:
        """Publishes objects, some hundreds in one round trip. Each is written by itself, or its result is the error."""
        return await self._run(self._operations.put_many(objects))

    async def get(self, key: str) -> StoredObject:
        """The object as Redis has it."""
        return await self._run(self._operations.get(key))

    async def delete(self, key: str, *, version: int = 0) -> Receipt:
        """Makes the edges forget an object. A key that has none is no error: late puts with older versions fail."""
        return await self._run(self._operations.delete(key, version))

    async def delete_many(self, keys: Sequence[str]) -> List[Union[Receipt, Exception]]:
        """Deletes objects, as put_many publishes."""
        return await self._run(self._operations.delete_many(keys))

    async def purge(
        self, *, tag: str = "", prefix: str = "", all: bool = False, virtual_host: str = "", soft: bool = False
    ) -> None:
        """Removes all objects with a tag, below a path (a prefix ends with /), or all: those of a virtual host, or
        those of none. With `soft` they count as expired. What is published afterwards stays. After an error, repeat
        it."""
        await self._run(self._operations.purge(tag, prefix, all, virtual_host, soft))

    async def put_device(
        self,
        id: str,
        secret: Optional[str] = None,
        *,
        hashes: Sequence[str] = (),
        permissions: Sequence[str] = (),
        labels: Mapping[str, str] = {},
        not_after: Optional[datetime] = None,
        disabled: bool = False,
        version: int = 0,
        cost: int = DEFAULT_COST,
        pepper: Optional[Pepper] = None,
        replace: bool = True,
    ) -> Receipt:
        """Registers a device, or replaces its record, even a revoked one. Give its secret, or hashes that exist. A
        pepper stores the secret, which must be generated, as gh1. Without `replace` another record is an
        ExistsError, and for an equal one nothing is written: the receipt's seq is 0."""
        return await self._run(
            self._operations.put_device(
                id, secret, hashes, permissions, labels, not_after, disabled, version, cost, pepper, replace
            )
        )

    async def get_device(self, id: str) -> StoredDevice:
        """The device as Redis has it."""
        return await self._run(self._operations.get_device(id))

    async def rotate_device(
        self,
        id: str,
        secret: str,
        *,
        overlap: Optional[timedelta] = None,
        if_version: Optional[int] = None,
        cost: int = DEFAULT_COST,
        pepper: Optional[Pepper] = None,
    ) -> Receipt:
        """Gives a device a new secret. The one before stays valid until the overlap ends; without one it ends at
        once."""
        return await self._run(self._operations.rotate_device(id, secret, overlap, if_version, cost, pepper))

    async def set_device(
        self,
        id: str,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        labels: Mapping[str, Optional[str]] = {},
        not_after: Union[datetime, Literal["never"], None] = None,
        disabled: Optional[bool] = None,
        end_overlap: bool = False,
        if_version: Optional[int] = None,
    ) -> Receipt:
        """Changes a device, and keeps the rest of its record, also the secret: adds and removes permissions, sets
        labels (None removes one). disabled=False also ends a revocation."""
        return await self._run(
            self._operations.set_device(id, add, remove, labels, not_after, disabled, end_overlap, if_version)
        )

    async def revoke_device(self, id: str, *, force: bool = False) -> Receipt:
        """Refuses a device from now on. With `force` also one that Redis doesn't have, which edges may still know."""
        return await self._run(self._operations.revoke_device(id, force))

    async def delete_device(self, id: str, *, force: bool = False) -> Receipt:
        """Makes the edges forget a device."""
        return await self._run(self._operations.delete_device(id, force))

    async def invalidate_device(self, id: str) -> Receipt:
        """Ends the verdicts of an authority on a device: it is asked again at the next request."""
        return await self._run(self._operations.invalidate_device(id))

    async def invalidate_label(self, name: str, value: str) -> Receipt:
        """invalidate_device for all devices to which the authority gave a label."""
        return await self._run(self._operations.invalidate_label(name, value))

    async def invalidate_all(self) -> Receipt:
        """invalidate_device for all devices without a record."""
        return await self._run(self._operations.invalidate("*"))


def _database(client: Any) -> int:
    """The number of the database, which is a part of the events channel's name."""
    return int(client.connection_pool.connection_kwargs.get("db") or 0)


def _replies(replies: List[Any]) -> List[Any]:
    """The replies of a pipeline. An error of the connection concerns all of them."""
    for reply in replies:
        if isinstance(reply, RedisError) and not isinstance(reply, redis.ResponseError):
            raise reply
    return replies
