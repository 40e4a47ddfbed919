package io.github.gatehouse;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.zip.CRC32;

/** Keys of objects: docs/redis-contract.md, section Keys. */
public final class Keys {
  private static final int MAX_KEY = 2048;
  private static final int MAX_PAIRS = 64;
  private static final String DEVICE = "[!#-+.0->@-~-]{1,128}";
  private static final String HOST = "[a-z0-9._-]{1,253}|\\[[0-9a-f:.]{1,251}\\]";
  private static final Pattern KEY = Pattern.compile(
      "(@" + DEVICE + ")?(//([a-z0-9_-]{1,64}|[a-z0-9_-]{0,64}:(" + HOST + "))/|/(?!/))[!\"$-~]*(#[a-z]{2,8}(-[a-z0-9]{1,8})*)?");
  private static final Pattern ID = Pattern.compile(DEVICE);
  private static final Pattern SPACE = Pattern.compile("(@[^/]*)?(//[^/]*(?=/))?");
  private static final Pattern ESCAPE = Pattern.compile("%[0-9A-Fa-f]{2}");
  private static final Pattern UNRESERVED = Pattern.compile("[A-Za-z0-9._~-]");

  private Keys() {}

  /**
   * Returns the key of the object at path for requests of a virtual host or, under a rule with scope {@code host}, for
   * those with this host. The name is empty for rules outside virtual hosts, the host for rules without that scope.
   */
  public static String ofVirtualHost(String name, String host, String path) {
    return "//" + name + (host.isEmpty() ? "" : ":" + host.toLowerCase(Locale.ROOT)) + path;
  }

  /** Returns the key of the object that only this device gets. */
  public static String ofDevice(String device, String key) {
    return "@" + device + key;
  }

  /** Returns the key of the object for key in a language. */
  public static String ofLanguage(String key, String language) {
    return key + "#" + language.toLowerCase(Locale.ROOT);
  }

  /** Returns the shard of a key or device id. */
  public static int shardOf(String id, int shards) {
    return (int) (crc32(id) % shards);
  }

  static long crc32(String text) {
    CRC32 crc = new CRC32();
    crc.update(text.getBytes(StandardCharsets.UTF_8));
    return crc.getValue();
  }

  /** Returns what precedes the path of a key: device, virtual host and host. */
  private static String space(String key) {
    Matcher found = SPACE.matcher(key);
    return found.lookingAt() ? found.group() : "";
  }

  /**
   * Returns the stored form of a key: host and language in lower case, the hex digits of escapes in upper case.
   *
   * @throws GatehouseException.Invalid for a key that no edge looks up
   */
  public static String canonical(String key) {
    String space = space(key);
    String target = before(key.substring(space.length()), '#');
    String language = key.substring(space.length() + target.length()).toLowerCase(Locale.ROOT);
    target = ESCAPE.matcher(target)
        .replaceAll(escape -> escape.group().toUpperCase(Locale.ROOT));
    int slashes = space.indexOf("//");
    int colon = slashes < 0 ? -1 : space.indexOf(':', slashes);
    if (colon >= 0) {
      space = space.substring(0, colon) + space.substring(colon).toLowerCase(Locale.ROOT);
    }
    String stored = space + target + language;
    if (stored.length() > MAX_KEY) {
      throw new GatehouseException.Invalid("key " + stored.substring(0, 64) + "…: " + stored.length()
          + " bytes, at most " + MAX_KEY + " are allowed");
    }
    if (!KEY.matcher(stored).matches()) {
      throw new GatehouseException.Invalid(
          "key " + key + ": want visible ASCII, [@device][//[virtual-host][:host]]/path[#language]");
    }
    int query = target.indexOf('?');
    if (query >= 0 && target.chars().skip(query).filter(c -> c == '&').count() >= MAX_PAIRS) {
      throw new GatehouseException.Invalid("key " + key + ": more than " + MAX_PAIRS + " parameters");
    }
    String want = lookedUp(target);
    if (!target.equals(want)) {
      throw new GatehouseException.Invalid("key " + key + ": no edge looks it up, want " + space + want + language);
    }
    return stored;
  }

  /**
   * Returns the target that the edge looks up for a request with this one: the proxy has normalised its path, and the
   * edge has sorted its query by name, without empty pairs.
   */
  private static String lookedUp(String target) {
    String path = before(target, '?');
    String query = target.substring(Math.min(path.length() + 1, target.length()));
    path = ESCAPE.matcher(path).replaceAll(escape -> {
      String decoded = String.valueOf((char) Integer.parseInt(escape.group().substring(1), 16));
      return Matcher.quoteReplacement(UNRESERVED.matcher(decoded).matches() ? decoded : escape.group());
    });
    String[] segments = path.replaceAll("%2F|%5C|\\\\", "/").split("/", -1);
    List<String> parts = new ArrayList<>();
    for (String segment : segments) {
      if (segment.equals("..")) {
        if (!parts.isEmpty()) {
          parts.remove(parts.size() - 1);
        }
      } else if (!segment.isEmpty() && !segment.equals(".")) {
        parts.add(segment);
      }
    }
    if (!parts.isEmpty() && List.of("", ".", "..").contains(segments[segments.length - 1])) {
      parts.add("");
    }
    String pairs = Arrays.stream(query.split("&")).filter(pair -> !pair.isEmpty())
        .sorted(Comparator.comparing(pair -> before(pair, '='))).collect(Collectors.joining("&"));
    return "/" + String.join("/", parts) + (pairs.isEmpty() ? "" : "?" + pairs);
  }

  private static String before(String text, char separator) {
    int at = text.indexOf(separator);
    return at < 0 ? text : text.substring(0, at);
  }

  static void checkDeviceId(String id) {
    if (!ID.matcher(id).matches()) {
      throw new GatehouseException.Invalid(
          "device id " + id + ": want 1 to 128 bytes of visible ASCII without / ? , and \"");
    }
  }

  /** Returns the ids of all purges that reach an object. */
  static List<String> purgesOf(String key, List<String> tags) {
    String space = space(key);
    int slashes = space.indexOf("//");
    String name = slashes < 0 ? "" : before(space.substring(slashes + 2), ':');
    String prefix = name.isEmpty() ? "" : "//" + name;
    String path = before(before(key.substring(space.length()), '#'), '?');
    List<String> ids = new ArrayList<>();
    for (int at = path.indexOf('/'); at >= 0; at = path.indexOf('/', at + 1)) {
      ids.add(prefix + path.substring(0, at + 1));
    }
    tags.forEach(tag -> ids.add(prefix + "#" + tag));
    return ids;
  }
}
