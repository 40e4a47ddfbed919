package io.github.gatehouse;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeSet;

/** An answer that the edges serve for a key. Its methods change it, and return it. */
public final class GatehouseObject {
  private static final int MAX_BODY = 1 << 20;

  final String key;
  private final byte[] body;
  private final String contentType;
  private final List<Map.Entry<String, String>> headers = new ArrayList<>();
  private final TreeSet<String> tags = new TreeSet<>();
  private Duration ttl;
  private int status = 200;
  private String etag = "";
  private long version;
  private Long ifVersion;
  boolean ifAbsent;

  private GatehouseObject(String key, byte[] body, String contentType) {
    this.key = key;
    this.body = body;
    this.contentType = contentType;
  }

  /** Returns an object; the body isn't copied. */
  public static GatehouseObject of(String key, byte[] body, String contentType) {
    return new GatehouseObject(key, body, contentType);
  }

  /** Returns an object with a body in UTF-8. */
  public static GatehouseObject of(String key, String body, String contentType) {
    return of(key, body.getBytes(StandardCharsets.UTF_8), contentType);
  }

  /** Sets until when it is served; by default until it changes. */
  public GatehouseObject ttl(Duration ttl) {
    this.ttl = ttl;
    return this;
  }

  /** Sets the status: 200 (default), 301, 302, 307, 308, 404 or 410. */
  public GatehouseObject status(int status) {
    this.status = status;
    return this;
  }

  /** Adds a response header; Content-Type isn't one of them. */
  public GatehouseObject header(String name, String value) {
    headers.add(Map.entry(name, value));
    return this;
  }

  /** Adds tags, which a purge can name. */
  public GatehouseObject tags(String... tags) {
    this.tags.addAll(List.of(tags));
    return this;
  }

  /** Sets a strong entity-tag, with its quotes; by default one of all that a 304 doesn't repeat. */
  public GatehouseObject etag(String etag) {
    this.etag = etag;
    return this;
  }

  /** Sets your own version, which must exceed every earlier one of the key; by default the next one. */
  public GatehouseObject version(long version) {
    this.version = version;
    return this;
  }

  /** Write only if the stored record has this version. */
  public GatehouseObject ifVersion(long version) {
    this.ifVersion = version;
    return this;
  }

  /** Write only if there is no object. */
  public GatehouseObject ifAbsent() {
    this.ifAbsent = true;
    return this;
  }

  /** Returns the script's version argument. */
  String versionArgument() {
    return ifVersion == null ? Long.toString(version) : "=" + ifVersion;
  }

  /** Returns the record. What write.lua checks isn't checked here. */
  Map<String, byte[]> fields() {
    String key = Keys.canonical(this.key);
    if (body.length > MAX_BODY) {
      throw new GatehouseException.Invalid(
          "body of " + key + ": " + body.length + " bytes, at most " + MAX_BODY + " are allowed");
    }
    Fields.checkVersion(version);
    Fields.checkVersion(ifVersion == null ? 0 : ifVersion);
    if ((version != 0 ? 1 : 0) + (ifVersion != null ? 1 : 0) + (ifAbsent ? 1 : 0) > 1) {
      throw new GatehouseException.Invalid(key + ": give one of version, ifVersion and ifAbsent");
    }
    List<String> lines = new ArrayList<>();
    for (Map.Entry<String, String> header : headers) {
      String name = header.getKey();
      if (name.contains("\n") || name.contains(":") || header.getValue().contains("\n")) {
        throw new GatehouseException.Invalid(
            "header " + name + " of " + key + ": has a line end, or a colon in its name");
      }
      lines.add(name.toLowerCase(Locale.ROOT) + ": " + header.getValue());
    }
    String headerLines = String.join("\n", lines);
    tags.forEach(tag -> Fields.checkTag(tag, key));
    Map<String, byte[]> fields = new LinkedHashMap<>();
    fields.put("etag", Fields.bytes(etag.isEmpty() ? defaultEtag(headerLines) : etag));
    fields.put("content-type", Fields.bytes(contentType));
    fields.put("body", body);
    if (ttl != null) {
      if (ttl.toMillis() < 1 || !Duration.ofMillis(ttl.toMillis()).equals(ttl)) {
        throw new GatehouseException.Invalid("ttl " + ttl + " of " + key + ": want whole milliseconds, 1 at least");
      }
      fields.put("ttl", Fields.bytes(Long.toString(ttl.toMillis())));
    }
    if (status != 200) {
      fields.put("status", Fields.bytes(Integer.toString(status)));
    }
    if (!headerLines.isEmpty()) {
      fields.put("headers", Fields.bytes(headerLines));
    }
    if (!tags.isEmpty()) {
      fields.put("tags", Fields.bytes(String.join(",", tags)));
    }
    fields.putAll(Encodings.of(body, contentType));
    return fields;
  }

  private String defaultEtag(String headerLines) {
    boolean plain = status == 200 && headerLines.isEmpty();
    String head = plain ? contentType + "\n" : contentType + "\0" + status + "\n" + headerLines + "\n";
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      digest.update(Fields.bytes(head));
      return "\"" + HexFormat.of().formatHex(digest.digest(body), 0, 16) + "\"";
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException(e); // every Java has it
    }
  }
}
