package io.github.gatehouse;

import java.time.Duration;
import java.time.Instant;
import java.util.AbstractMap.SimpleImmutableEntry;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * An object as Redis has it.
 *
 * @param key its canonical key
 * @param body in the identity encoding
 * @param contentType as published
 * @param version of the record
 * @param published when it was written, by the clock of Redis
 * @param etag with its quotes
 * @param ttl null: until it changes
 * @param status 200 by default
 * @param headers of the publisher
 * @param tags in byte order
 * @param encodings the body by content coding: gzip, br, zstd
 * @param stale a soft purge reaches it: it counts as expired
 */
public record StoredObject(String key, byte[] body, String contentType, long version, Instant published, String etag,
    Duration ttl, int status, List<Map.Entry<String, String>> headers, List<String> tags,
    Map<String, byte[]> encodings, boolean stale) {

  static StoredObject parse(String key, Map<String, byte[]> record, boolean stale) {
    Map<String, byte[]> encodings = new LinkedHashMap<>();
    record.forEach((field, value) -> {
      if (field.startsWith("body.")) {
        encodings.put(field.substring("body.".length()), value);
      }
    });
    List<Map.Entry<String, String>> headers = Fields.split(record.get("headers"), "\n").stream()
        .<Map.Entry<String, String>>map(line -> {
          String[] pair = line.split(": ", 2);
          return new SimpleImmutableEntry<>(pair[0], pair.length > 1 ? pair[1] : "");
        }).toList();
    return new StoredObject(key, Fields.need(key, record, "body"),
        Fields.text(Fields.need(key, record, "content-type")), Fields.needNumber(key, record, "version"),
        Instant.ofEpochMilli(Fields.needNumber(key, record, "published")), Fields.text(Fields.need(key, record, "etag")),
        record.get("ttl") == null ? null : Duration.ofMillis(Fields.needNumber(key, record, "ttl")),
        record.get("status") == null ? 200 : (int) Fields.needNumber(key, record, "status"), headers,
        Fields.split(record.get("tags"), ","), encodings, stale);
  }
}
