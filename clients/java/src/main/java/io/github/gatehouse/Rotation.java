package io.github.gatehouse;

import java.time.Duration;

/** A new secret of a device. Its methods change it, and return it. */
public final class Rotation {
  final String id;
  final String secret;
  Duration overlap;
  Long ifVersion;
  int cost = Secrets.DEFAULT_COST;
  Pepper pepper;

  private Rotation(String id, String secret) {
    this.id = id;
    this.secret = secret;
  }

  /** Returns a rotation to this secret. */
  public static Rotation of(String id, String secret) {
    return new Rotation(id, secret);
  }

  /** Sets how long the secret before stays valid; by default it ends at once. */
  public Rotation overlap(Duration overlap) {
    this.overlap = overlap;
    return this;
  }

  /** Write only if the stored record has this version. */
  public Rotation ifVersion(long version) {
    ifVersion = version;
    return this;
  }

  /** Sets the cost of bcrypt; 12 by default. */
  public Rotation cost(int cost) {
    this.cost = cost;
    return this;
  }

  /** Stores the secret, which must be generated, as gh1. */
  public Rotation pepper(Pepper pepper) {
    this.pepper = pepper;
    return this;
  }
}
