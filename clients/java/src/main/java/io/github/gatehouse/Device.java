package io.github.gatehouse;

import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A device to register. Its methods change it, and return it. */
public final class Device {
  final String id;
  private final String secret;
  private final List<String> hashes;
  private final List<String> permissions = new ArrayList<>();
  private final Map<String, String> labels = new LinkedHashMap<>();
  private Instant notAfter;
  private boolean disabled;
  private int cost = Secrets.DEFAULT_COST;
  private Pepper pepper;
  long version;
  boolean replace = true;

  private Device(String id, String secret, List<String> hashes) {
    this.id = id;
    this.secret = secret;
    this.hashes = hashes;
  }

  /** Returns a device with this secret. */
  public static Device withSecret(String id, String secret) {
    return new Device(id, secret, List.of());
  }

  /** Returns a device with hashes that exist; a disabled one may have none. */
  public static Device withHashes(String id, String... hashes) {
    return new Device(id, null, List.of(hashes));
  }

  /** Adds permissions. */
  public Device permissions(String... names) {
    permissions.addAll(List.of(names));
    return this;
  }

  /** Adds a label, which is for operators. */
  public Device label(String name, String value) {
    labels.put(name, value);
    return this;
  }

  /** Sets from when it is refused. */
  public Device notAfter(Instant time) {
    notAfter = time;
    return this;
  }

  /** Refuses it with any credential. */
  public Device disabled() {
    disabled = true;
    return this;
  }

  /** Sets the cost of bcrypt; 12 by default. */
  public Device cost(int cost) {
    this.cost = cost;
    return this;
  }

  /** Stores the secret, which must be generated, as gh1. */
  public Device pepper(Pepper pepper) {
    this.pepper = pepper;
    return this;
  }

  /** Sets your own version; by default the next one. */
  public Device version(long version) {
    this.version = version;
    return this;
  }

  /** Another record is an error, and for an equal one nothing is written: the receipt's seq is 0. */
  public Device ifAbsent() {
    replace = false;
    return this;
  }

  Map<String, byte[]> fields() {
    Keys.checkDeviceId(id);
    Fields.checkVersion(version);
    if (id.startsWith("*")) {
      throw new GatehouseException.Invalid("device " + id + ": ids that begin with * are for invalidations");
    }
    if (secret == null && hashes.isEmpty() && !disabled) {
      throw new GatehouseException.Invalid("device " + id + ": give a secret, or hashes");
    }
    Map<String, byte[]> fields = new LinkedHashMap<>();
    if (disabled) {
      fields.put("disabled", Fields.bytes("1"));
    }
    Fields.putPermissions(fields, id, permissions);
    Fields.putLabels(fields, id, labels);
    if (notAfter != null) {
      fields.put("not-after", Fields.unixMillis("notAfter of " + id, notAfter));
    }
    if (secret != null) {
      Secrets.check(id, secret);
      fields.put("hash", Fields.bytes(Secrets.hash(secret, cost, pepper)));
    } else if (!hashes.isEmpty()) {
      fields.put("hash", Fields.bytes(String.join("\n", hashes)));
    }
    return fields;
  }
}
