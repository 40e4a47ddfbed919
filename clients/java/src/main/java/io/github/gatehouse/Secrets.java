package io.github.gatehouse;

import at.favre.lib.crypto.bcrypt.BCrypt;
import at.favre.lib.crypto.bcrypt.LongPasswordStrategies;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.regex.Pattern;

/** Secrets of devices, and their hashes: docs/redis-contract.md, section Hashes. */
public final class Secrets {
  static final int DEFAULT_COST = 12;
  private static final int MAX_SECRET = 72;
  private static final SecureRandom RANDOM = new SecureRandom();
  private static final Pattern FORM = Pattern.compile("gh_[A-Z2-7]{26}_[0-9a-f]{8}");
  private static final Pattern SECRET =
      Pattern.compile("(?!\u00ef\u00bb\u00bf)[^\\x00- \\x7f]([^\\x00-\\x1f\\x7f]*[^\\x00- \\x7f])?");

  private Secrets() {}

  /** Returns a new secret with 130 random bits: gh_… with a checksum. */
  public static String generate() {
    StringBuilder secret = new StringBuilder("gh_");
    for (int i = 0; i < 26; i++) {
      secret.append("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".charAt(RANDOM.nextInt(32)));
    }
    return secret + "_" + checksum(secret.toString());
  }

  private static String checksum(String text) {
    return String.format("%08x", Keys.crc32(text));
  }

  /** Reports whether a secret has the form of {@link #generate}, and its checksum is right. */
  public static boolean isGenerated(String secret) {
    return FORM.matcher(secret).matches() && secret.substring(30).equals(checksum(secret.substring(0, 29)));
  }

  /** Returns the API key of a device with a generated secret. */
  public static String apiKey(String id, String secret) {
    Keys.checkDeviceId(id);
    if (!isGenerated(secret)) {
      throw new GatehouseException.Invalid("only a generated secret has an API key: see Secrets.generate");
    }
    return "gh_" + id + "_" + secret.substring(3);
  }

  /** Returns the bcrypt hash of a secret, which takes some 0.3 s. The cost is 4 to 15. */
  public static String hash(String secret, int cost) {
    if (cost < 4 || cost > 15) {
      throw new GatehouseException.Invalid("cost " + cost + ": is out of 4 to 15");
    }
    byte[] bytes = secret.getBytes(StandardCharsets.UTF_8);
    // Secrets have 72 bytes at most, all of which bcrypt reads.
    byte[] hash = BCrypt.with(BCrypt.Version.VERSION_2B, RANDOM, LongPasswordStrategies.none()).hash(cost, bytes);
    return new String(hash, StandardCharsets.US_ASCII);
  }

  /** Reports whether a hash of bcrypt or, with its pepper, gh1 is one of the secret; false for other schemes. */
  public static boolean matches(String hash, String secret, Pepper pepper) {
    if (!hash.startsWith("$2")) {
      return pepper != null && pepper.matches(hash, secret);
    }
    return BCrypt.verifyer(null, LongPasswordStrategies.none())
        .verify(secret.getBytes(StandardCharsets.UTF_8), hash.getBytes(StandardCharsets.US_ASCII)).verified;
  }

  static String hash(String secret, int cost, Pepper pepper) {
    return pepper == null ? hash(secret, cost) : pepper.hash(secret);
  }

  /** Refuses a secret that no client can send, without quoting it. */
  static void check(String id, String secret) {
    byte[] bytes = secret.getBytes(StandardCharsets.UTF_8);
    if (bytes.length < 1 || bytes.length > MAX_SECRET) {
      throw new GatehouseException.Invalid(
          "secret of " + id + ": " + bytes.length + " bytes, want 1 to " + MAX_SECRET);
    }
    if (!SECRET.matcher(new String(bytes, StandardCharsets.ISO_8859_1)).matches()) {
      throw new GatehouseException.Invalid("secret of " + id
          + ": has a control character, a blank at an end, or a byte order mark, which no header can carry");
    }
    if (secret.startsWith("gh_") && !isGenerated(secret)) {
      throw new GatehouseException.Invalid("secret of " + id + ": begins with gh_, but its checksum is wrong");
    }
  }
}
