/** The base of all errors of this package. Nothing was written. Others are node-redis'. */
export class GatehouseError extends Error {
  constructor(message: string) {
    super(message)
    this.name = new.target.name
  }
}

/**
 * The version is not newer than the stored one, or the stored one is not `ifVersion`. After a retry it may mean that
 * the first attempt was applied.
 */
export class StaleError extends GatehouseError {}

/** The object or device does not exist, or was deleted or purged. */
export class NotFoundError extends GatehouseError {}

/** The contract does not allow the argument. The message names value and limit. */
export class InvalidError extends GatehouseError {}

/** There is a record already (`ifAbsent`). */
export class ExistsError extends GatehouseError {}

/** The memory of Redis is used up. Deletions and revocations still succeed. */
export class FullError extends GatehouseError {}

/** The contract does not allow the stored record. A new write replaces it. */
export class CorruptError extends GatehouseError {}

/** Redis has another number of shards than this program. */
export class ShardsError extends GatehouseError {}
