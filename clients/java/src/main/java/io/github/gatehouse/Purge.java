package io.github.gatehouse;

/** What to purge. Its methods change it, and return it. */
public final class Purge {
  private final String what;
  private final boolean tag;
  private String virtualHost = "";
  private boolean soft;

  private Purge(String what, boolean tag) {
    this.what = what;
    this.tag = tag;
  }

  /** Purges all objects with a tag. */
  public static Purge tag(String tag) {
    return new Purge(tag, true);
  }

  /** Purges all objects whose path begins so; it ends with a slash. */
  public static Purge prefix(String prefix) {
    return new Purge(prefix, false);
  }

  /** Purges all objects. */
  public static Purge all() {
    return prefix("/");
  }

  /** Purges objects of this virtual host; by default those of none. */
  public Purge virtualHost(String name) {
    virtualHost = name;
    return this;
  }

  /** They count as expired, and aren't removed. */
  public Purge soft() {
    soft = true;
    return this;
  }

  String field() {
    return soft ? "soft" : "hard";
  }

  String id() {
    String host = virtualHost.isEmpty() ? "" : "//" + virtualHost;
    if (tag) {
      Fields.checkTag(what, "a purge");
      return host + "#" + what;
    }
    if (!what.endsWith("/")) {
      throw new GatehouseException.Invalid("prefix " + what + ": want a path that ends with /");
    }
    return Keys.canonical(host + what);
  }
}
