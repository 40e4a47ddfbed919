package io.github.gatehouse;

import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;

/** Fields of records: docs/redis-contract.md, section Records. */
final class Fields {
  static final long MAX_VERSION = (1L << 53) - 1;
  /** The highest version that a writer gives itself. */
  static final long MAX_OWN_VERSION = 1L << 52;
  private static final Pattern NAME = Pattern.compile("[A-Za-z0-9._:-]{1,64}");
  private static final Pattern TAG = Pattern.compile("[A-Za-z0-9._~:/?#\\[\\]@!$&'()+;=%-]{1,64}");
  private static final Pattern LABEL = Pattern.compile("[a-z0-9._-]{1,32}=[A-Za-z0-9._:-]{0,64}");

  private Fields() {}

  static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static String text(Object bytes) {
    return bytes == null ? null
        : bytes instanceof byte[] b ? new String(b, StandardCharsets.UTF_8) : String.valueOf(bytes);
  }

  static long number(Object bytes) {
    return bytes == null ? 0 : (long) Double.parseDouble(text(bytes));
  }

  static void checkVersion(long version) {
    if (version < 0 || version > MAX_VERSION) {
      throw new GatehouseException.Invalid("version " + version + ": is out of 0 to " + MAX_VERSION);
    }
  }

  static void checkPermission(String name, String of) {
    if (!NAME.matcher(name).matches()) {
      throw new GatehouseException.Invalid(
          "permission " + name + " of " + of + ": want 1 to 64 of letters, digits and . _ : -");
    }
  }

  static void checkTag(String tag, String of) {
    if (!TAG.matcher(tag).matches()) {
      throw new GatehouseException.Invalid(
          "tag " + tag + " of " + of + ": want 1 to 64 of a URI's characters other than , and *");
    }
  }

  static byte[] unixMillis(String what, Instant time) {
    try {
      if (time.toEpochMilli() >= 1 && time.toEpochMilli() <= MAX_VERSION) {
        return bytes(Long.toString(time.toEpochMilli()));
      }
    } catch (ArithmeticException e) {
      // as below
    }
    throw new GatehouseException.Invalid(what + " " + time + ": want a time after 1970");
  }

  /** Sets or removes the field of permissions. */
  static void putPermissions(Map<String, byte[]> fields, String id, Collection<String> permissions) {
    TreeSet<String> names = new TreeSet<>(permissions);
    names.forEach(name -> checkPermission(name, id));
    if (names.size() > 64) {
      throw new GatehouseException.Invalid(
          "permissions of " + id + ": " + names.size() + " names, at most 64 are allowed");
    }
    fields.remove("permissions");
    if (!names.isEmpty()) {
      fields.put("permissions", bytes(String.join(",", names)));
    }
  }

  /** Sets or removes the field of labels. */
  static void putLabels(Map<String, byte[]> fields, String id, Map<String, String> labels) {
    List<String> pairs = new ArrayList<>();
    new TreeMap<>(labels).forEach((name, value) -> pairs.add(label(id, name, value)));
    fields.remove("labels");
    if (!pairs.isEmpty()) {
      fields.put("labels", bytes(String.join(",", pairs)));
    }
  }

  static String label(String id, String name, String value) {
    String pair = name + "=" + value;
    if (!LABEL.matcher(pair).matches()) {
      throw new GatehouseException.Invalid("label " + pair + " of " + id + ": want a name of 1 to 32 of a-z, 0-9 and "
          + ". _ -, and a value of at most 64 letters, digits and . _ : -");
    }
    return pair;
  }

  /** Returns the reply of HGETALL as a map. */
  static Map<String, byte[]> record(List<Object> reply) {
    Map<String, byte[]> record = new LinkedHashMap<>();
    for (int i = 0; i + 1 < reply.size(); i += 2) {
      record.put(text(reply.get(i)), (byte[]) reply.get(i + 1));
    }
    return record;
  }

  static List<String> split(byte[] value, String separator) {
    return value == null || value.length == 0 ? List.of() : List.of(text(value).split(separator, -1));
  }

  /** Returns a field that every record has. */
  static byte[] need(String what, Map<String, byte[]> record, String field) {
    if (record.get(field) == null) {
      throw new GatehouseException.Corrupt("record of " + what + ": " + field + " is missing");
    }
    return record.get(field);
  }

  static long needNumber(String what, Map<String, byte[]> record, String field) {
    try {
      return Long.parseLong(text(need(what, record, field)));
    } catch (NumberFormatException e) {
      throw new GatehouseException.Corrupt("record of " + what + ": " + field + " is no number");
    }
  }

  static Instant time(String what, Map<String, byte[]> record, String field) {
    try {
      return record.get(field) == null ? null : Instant.ofEpochMilli(needNumber(what, record, field));
    } catch (DateTimeException e) {
      throw new GatehouseException.Corrupt("record of " + what + ": " + field + " is no time");
    }
  }
}
