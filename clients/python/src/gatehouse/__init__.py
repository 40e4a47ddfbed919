"""Publishes objects and devices to Gatehouse. README.md has the table of operations."""

from .errors import (
    CorruptError,
    ExistsError,
    FullError,
    GatehouseError,
    InvalidError,
    NotFoundError,
    ShardsError,
    StaleError,
)
from .hashes import Pepper, api_key, hash_secret, is_generated, new_secret
from .keys import canonical, key_of_device, key_of_language, key_of_virtual_host, shard_of
from .publisher import AsyncPublisher, Publisher
from .records import Object, Receipt, StoredDevice, StoredObject

__all__ = [
    "AsyncPublisher",
    "CorruptError",
    "ExistsError",
    "FullError",
    "GatehouseError",
    "InvalidError",
    "NotFoundError",
    "Object",
    "Pepper",
    "Publisher",
    "Receipt",
    "ShardsError",
    "StaleError",
    "StoredDevice",
    "StoredObject",
    "api_key",
    "canonical",
    "hash_secret",
    "is_generated",
    "key_of_device",
    "key_of_language",
    "key_of_virtual_host",
    "new_secret",
    "shard_of",
]
