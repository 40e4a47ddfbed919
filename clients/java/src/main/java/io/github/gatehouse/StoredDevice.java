package io.github.gatehouse;

import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * A device as Redis has it.
 *
 * @param id the device id
 * @param version of the record
 * @param published when it was written, by the clock of Redis
 * @param disabled it is refused with any credential
 * @param revoked a revocation disabled it
 * @param permissions in byte order
 * @param labels for operators
 * @param notAfter from when it is refused; null: never
 * @param oldUntil until when secrets before the newest count; null: for ever
 * @param hashes of its secrets, the newest first
 */
public record StoredDevice(String id, long version, Instant published, boolean disabled, boolean revoked,
    List<String> permissions, Map<String, String> labels, Instant notAfter, Instant oldUntil, List<String> hashes) {

  static StoredDevice parse(String id, Map<String, byte[]> record) {
    String what = "device " + id;
    Map<String, String> labels = new TreeMap<>();
    for (String pair : Fields.split(record.get("labels"), ",")) {
      String[] parts = pair.split("=", 2);
      labels.put(parts[0], parts.length > 1 ? parts[1] : "");
    }
    return new StoredDevice(id, Fields.needNumber(what, record, "version"),
        Instant.ofEpochMilli(Fields.needNumber(what, record, "published")), record.containsKey("disabled"),
        "revoked".equals(Fields.text(record.get("disabled"))), Fields.split(record.get("permissions"), ","), labels,
        Fields.time(what, record, "not-after"), Fields.time(what, record, "old-until"),
        Fields.split(record.get("hash"), "\n"));
  }
}
