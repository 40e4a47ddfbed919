"""What a write or read can fail with. Errors of the connection, and of Redis itself, are redis-py's."""


class GatehouseError(Exception):
    """The base of all errors of this package. Nothing was written."""


class StaleError(GatehouseError):
    """The version is not newer than the stored one, or the stored one is not ``if_version``. After a retry it may mean
    that the first attempt was applied."""


class NotFoundError(GatehouseError):
    """The object or device does not exist, or was deleted or purged."""


class InvalidError(GatehouseError, ValueError):
    """The contract does not allow the argument. The message names value and limit."""


class ExistsError(GatehouseError):
    """There is a record already (``if_absent``)."""


class FullError(GatehouseError):
    """The memory of Redis is used up. Deletions and revocations still succeed."""


class CorruptError(GatehouseError):
    """The contract does not allow the stored record. A new write replaces it."""


class ShardsError(GatehouseError):
    """Redis has another number of shards than this program."""
