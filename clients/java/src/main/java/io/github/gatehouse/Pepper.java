package io.github.gatehouse;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Base64;
import java.util.HexFormat;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** A key of the scheme gh1. Redis never has it. */
public final class Pepper {
  private static final SecureRandom RANDOM = new SecureRandom();

  private final SecretKeySpec key;
  private final String id;

  /** Returns the pepper in the content of its file: at least 32 random bytes. */
  public Pepper(byte[] content) {
    String text = new String(content, StandardCharsets.ISO_8859_1).replaceAll("^[\\t-\\r ]+|[\\t-\\r ]+$", "");
    if (text.length() < 32 || text.length() > 4096) {
      throw new GatehouseException.Invalid(
          "a pepper of " + text.length() + " bytes, want 32 to 4096: openssl rand -hex 32 makes one");
    }
    key = new SecretKeySpec(text.getBytes(StandardCharsets.ISO_8859_1), "HmacSHA256");
    id = HexFormat.of().formatHex(mac("gatehouse gh1, id", new byte[0], ""), 0, 8);
  }

  /** Tells peppers apart. */
  public String id() {
    return id;
  }

  private byte[] mac(String purpose, byte[] salt, String secret) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(key);
      mac.update((purpose + "\0").getBytes(StandardCharsets.US_ASCII));
      mac.update(salt);
      return mac.doFinal(secret.getBytes(StandardCharsets.UTF_8));
    } catch (GeneralSecurityException e) {
      throw new IllegalStateException(e); // every Java has it
    }
  }

  /** Returns a gh1 hash of a generated secret. */
  public String hash(String secret) {
    if (!Secrets.isGenerated(secret)) {
      throw new GatehouseException.Invalid("only generated secrets can be stored as gh1: see Secrets.generate");
    }
    byte[] salt = new byte[16];
    RANDOM.nextBytes(salt);
    Base64.Encoder text = Base64.getEncoder().withoutPadding();
    return "$gh1$" + id + "$" + text.encodeToString(salt) + "$"
        + text.encodeToString(mac("gatehouse gh1, hash", salt, secret));
  }

  /** Reports whether a gh1 hash is one of the secret under this pepper. */
  public boolean matches(String hash, String secret) {
    String[] parts = hash.split("\\$", -1);
    if (parts.length != 5 || !parts[1].equals("gh1") || !parts[2].equals(id) || !Secrets.isGenerated(secret)) {
      return false;
    }
    byte[] salt = Base64.getDecoder().decode(parts[3].replace('.', '+'));
    byte[] want = Base64.getDecoder().decode(parts[4].replace('.', '+'));
    return MessageDigest.isEqual(want, mac("gatehouse gh1, hash", salt, secret));
  }
}
