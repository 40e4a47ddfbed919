package io.github.gatehouse;

/**
 * A recorded write.
 *
 * @param version the new version of the record
 * @param seq the write's sequence number in its shard
 */
public record Receipt(long version, long seq) {}
