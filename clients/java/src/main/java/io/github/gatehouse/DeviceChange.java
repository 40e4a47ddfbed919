package io.github.gatehouse;

import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

/** A change of a device; the rest of its record stays. Its methods change it, and return it. */
public final class DeviceChange {
  final String id;
  Long ifVersion;
  private final TreeSet<String> add = new TreeSet<>();
  private final TreeSet<String> remove = new TreeSet<>();
  private final Map<String, String> labels = new HashMap<>(); // null removes one
  private Instant notAfter;
  private boolean never;
  private Boolean disabled;
  private boolean endOverlap;

  private DeviceChange(String id) {
    this.id = id;
  }

  /** Returns a change of this device. */
  public static DeviceChange of(String id) {
    return new DeviceChange(id);
  }

  /** Adds permissions. */
  public DeviceChange add(String... permissions) {
    add.addAll(List.of(permissions));
    return this;
  }

  /** Removes permissions. */
  public DeviceChange remove(String... permissions) {
    remove.addAll(List.of(permissions));
    return this;
  }

  /** Sets a label; null removes it. */
  public DeviceChange label(String name, String value) {
    labels.put(name, value);
    return this;
  }

  /** Sets from when it is refused; null: never. */
  public DeviceChange notAfter(Instant time) {
    notAfter = time;
    never = time == null;
    return this;
  }

  /** Refuses it with any credential, or not; false also ends a revocation. */
  public DeviceChange disabled(boolean disabled) {
    this.disabled = disabled;
    return this;
  }

  /** The old secret ends at once. */
  public DeviceChange endOverlap() {
    endOverlap = true;
    return this;
  }

  /** Write only if the stored record has this version. */
  public DeviceChange ifVersion(long version) {
    ifVersion = version;
    return this;
  }

  void apply(StoredDevice device, Map<String, byte[]> fields) {
    TreeSet<String> names = new TreeSet<>(device.permissions());
    names.addAll(add);
    names.removeAll(remove);
    Fields.putPermissions(fields, id, names);
    Map<String, String> merged = new TreeMap<>(device.labels());
    labels.forEach((name, value) -> {
      if (value == null) {
        merged.remove(name);
      } else {
        merged.put(name, value);
      }
    });
    Fields.putLabels(fields, id, merged);
    if (notAfter != null) {
      fields.put("not-after", Fields.unixMillis("notAfter of " + id, notAfter));
    } else if (never) {
      fields.remove("not-after");
    }
    if (Boolean.TRUE.equals(disabled)) {
      fields.putIfAbsent("disabled", Fields.bytes("1"));
    } else if (disabled != null) {
      fields.remove("disabled");
    }
    if (endOverlap && !device.hashes().isEmpty()) {
      fields.put("hash", Fields.bytes(device.hashes().get(0)));
      fields.remove("old-until");
    }
  }
}
