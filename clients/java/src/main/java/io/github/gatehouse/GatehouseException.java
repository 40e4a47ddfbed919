package io.github.gatehouse;

/** What a write or read can fail with. Nothing was written. Errors of the connection, and of Redis itself, are Lettuce's. */
public abstract class GatehouseException extends RuntimeException {
  private static final long serialVersionUID = 1;

  GatehouseException(String message) {
    super(message);
  }

  /**
   * The version is not newer than the stored one, or the stored one is not {@code ifVersion}. After a retry it may mean
   * that the first attempt was applied.
   */
  public static final class Stale extends GatehouseException {
    private static final long serialVersionUID = 1;

    Stale(String message) {
      super(message);
    }
  }

  /** The object or device does not exist, or was deleted or purged. */
  public static final class NotFound extends GatehouseException {
    private static final long serialVersionUID = 1;

    NotFound(String message) {
      super(message);
    }
  }

  /** The contract does not allow the argument. The message names value and limit. */
  public static final class Invalid extends GatehouseException {
    private static final long serialVersionUID = 1;

    Invalid(String message) {
      super(message);
    }
  }

  /** There is a record already ({@code ifAbsent}). */
  public static final class Exists extends GatehouseException {
    private static final long serialVersionUID = 1;

    Exists(String message) {
      super(message);
    }
  }

  /** The memory of Redis is used up. Deletions and revocations still succeed. */
  public static final class Full extends GatehouseException {
    private static final long serialVersionUID = 1;

    Full(String message) {
      super(message);
    }
  }

  /** The contract does not allow the stored record. A new write replaces it. */
  public static final class Corrupt extends GatehouseException {
    private static final long serialVersionUID = 1;

    Corrupt(String message) {
      super(message);
    }
  }

  /** Redis has another number of shards than this program. */
  public static final class Shards extends GatehouseException {
    private static final long serialVersionUID = 1;

    Shards(String message) {
      super(message);
    }
  }
}
