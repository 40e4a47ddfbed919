package io.github.gatehouse;

/**
 * The outcome of one of several writes: a receipt or an error, the other is null.
 *
 * @param receipt of the write
 * @param error why nothing was written, or, if it isn't a {@link GatehouseException}, may not have been
 */
public record Result(Receipt receipt, RuntimeException error) {
  /** Returns the receipt, or throws the error. */
  public Receipt get() {
    if (error != null) {
      throw error;
    }
    return receipt;
  }
}
