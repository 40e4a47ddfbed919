package io.github.gatehouse;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.CommandType;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.security.SecureRandom;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * Writes to all shards. It blocks, and is safe for use by many threads: one serves all of a program. The client is
 * yours, and so are its TLS and logins; {@link #close} closes only the publisher's connection.
 */
public final class Publisher implements AutoCloseable {
  private static final byte[] SCRIPT = script();
  private static final byte[] SHA1 = Fields.bytes(sha1(SCRIPT));
  private static final Pattern NAMESPACE = Pattern.compile("[a-z0-9][a-z0-9-]{0,31}");
  private static final SecureRandom RANDOM = new SecureRandom();
  private static final long TOMBSTONE_LIFE_MS = 24 * 60 * 60 * 1000;
  private static final int ATTEMPTS = 10; // of a change whose record is written meanwhile
  private static final int MOST_RECORDS = 512; // at once
  private static final int MOST_BYTES = 4 << 20;
  private static final Duration MOVING_FOR = Duration.ofSeconds(5);
  // A Cluster moves the slot, and executed nothing.
  private static final Set<String> MOVING = Set.of("TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN");

  private final StatefulConnection<byte[], byte[]> connection;
  private final int shards;
  private final String name;
  private final String author;
  private final String channel;
  private final String publish;
  private volatile boolean agreed;

  private record Mutation(String mode, String member, Map<String, byte[]> fields, String version) {
    Mutation(String mode, String member, Map<String, byte[]> fields) {
      this(mode, member, fields, "0");
    }

    int size() {
      return fields.values().stream().mapToInt(value -> value.length).sum();
    }
  }

  /** One run of the script: what follows it. */
  private record Call(List<String> keys, List<byte[]> args) {}

  /** A member in Redis: its record's version, 0 for none, and the highest version that may have been assigned. */
  private record State(boolean there, boolean deleted, boolean logged, long version) {}

  /** Settings of a publisher. */
  public static final class Builder {
    private final Function<Builder, Publisher> build;
    private int shards = 1;
    private String namespace = "";
    private String author = defaultAuthor();

    Builder(Function<Builder, Publisher> build) {
      this.build = build;
    }

    /** Sets the number of shards, the same for all writers and sidecars; 1 by default. */
    public Builder shards(int shards) {
      this.shards = shards;
      return this;
    }

    /** Sets the namespace, the same for all writers and sidecars; none by default. */
    public Builder namespace(String namespace) {
      this.namespace = namespace;
      return this;
    }

    /** Sets who writes, for the audit of devices; user@host by default. */
    public Builder author(String author) {
      this.author = author;
      return this;
    }

    /** Connects, and returns the publisher. */
    public Publisher build() {
      if (shards < 1 || shards > 64) {
        throw new GatehouseException.Invalid("shards: " + shards + " is out of 1 to 64");
      }
      if (!namespace.isEmpty() && !NAMESPACE.matcher(namespace).matches()) {
        throw new GatehouseException.Invalid("namespace " + namespace
            + ": want 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit");
      }
      return build.apply(this);
    }
  }

  /** Returns the settings of a publisher to one server, or, by the URI, one that sentinels name. */
  public static Builder builder(RedisClient client, RedisURI uri) {
    return new Builder(builder ->
        new Publisher(client.connect(ByteArrayCodec.INSTANCE, uri), builder, uri.getDatabase(), "PUBLISH"));
  }

  /** Returns the settings of a publisher to a Cluster. */
  public static Builder builder(RedisClusterClient client) {
    return new Builder(builder -> new Publisher(client.connect(ByteArrayCodec.INSTANCE), builder, 0, "SPUBLISH"));
  }

  /** Connects to one server, or, by the URI, one that sentinels name. */
  public static Publisher connect(RedisClient client, RedisURI uri) {
    return builder(client, uri).build();
  }

  /** Connects to a Cluster. */
  public static Publisher connect(RedisClusterClient client) {
    return builder(client).build();
  }

  Publisher(StatefulConnection<byte[], byte[]> connection, Builder builder, int database, String publish) {
    this.connection = connection;
    this.shards = builder.shards;
    this.name = builder.namespace.isEmpty() ? "gatehouse" : "gatehouse." + builder.namespace;
    this.author = builder.author;
    this.channel = database == 0 ? "events" : "events:" + database;
    this.publish = publish;
  }

  /** Closes its connection. */
  @Override
  public void close() {
    connection.close();
  }

  private static byte[] script() {
    try (InputStream in = Publisher.class.getResourceAsStream("write.lua")) {
      return in.readAllBytes();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static String sha1(byte[] data) {
    try {
      return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-1").digest(data));
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException(e); // every Java has it
    }
  }

  private static String defaultAuthor() {
    String host = "?";
    try {
      host = InetAddress.getLocalHost().getHostName();
    } catch (UnknownHostException e) {
      // unknown
    }
    return System.getProperty("user.name", "?") + "@" + host;
  }

  // Commands.

  private String prefix(int shard) {
    return "{" + name + ":" + shard + "}:";
  }

  private String prefixOf(String member) {
    return prefix(Keys.shardOf(member.substring(2), shards));
  }

  private AsyncCommand<byte[], byte[], List<Object>> send(
      ProtocolKeyword command, CommandArgs<byte[], byte[]> args) {
    AsyncCommand<byte[], byte[], List<Object>> sent =
        new AsyncCommand<>(new Command<>(command, new NestedMultiOutput<>(ByteArrayCodec.INSTANCE), args));
    connection.dispatch(sent);
    return sent;
  }

  private AsyncCommand<byte[], byte[], List<Object>> send(ProtocolKeyword command, String key, String... args) {
    CommandArgs<byte[], byte[]> all = new CommandArgs<>(ByteArrayCodec.INSTANCE).addKey(Fields.bytes(key));
    Arrays.stream(args).forEach(arg -> all.add(Fields.bytes(arg)));
    return send(command, all);
  }

  /** Returns the reply; a single value is a list of one. */
  private List<Object> await(AsyncCommand<byte[], byte[], List<Object>> sent) {
    Duration timeout = connection.getTimeout();
    return await(sent, timeout.isZero() ? Long.MAX_VALUE : timeout.toNanos()); // Lettuce's zero is no timeout
  }

  private List<Object> await(AsyncCommand<byte[], byte[], List<Object>> sent, long nanos) {
    try {
      List<Object> reply = sent.get(nanos, TimeUnit.NANOSECONDS);
      return reply == null ? Collections.singletonList(null) : reply;
    } catch (TimeoutException e) {
      sent.cancel(true);
      throw new RedisCommandTimeoutException("no reply after " + connection.getTimeout());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new RedisException("interrupted", e);
    } catch (ExecutionException e) {
      throw e.getCause() instanceof RuntimeException known ? translate(known) : new RedisException(e.getCause());
    }
  }

  private static Object first(List<Object> reply) {
    return reply.isEmpty() ? null : reply.get(0);
  }

  /** Returns the first word of an error of Redis. */
  private static String code(RuntimeException error) {
    return error instanceof RedisCommandExecutionException && error.getMessage() != null
        ? error.getMessage().split(" ", 2)[0] : "";
  }

  /** Returns this package's error for one of the script. */
  private static RuntimeException translate(RuntimeException error) {
    String code = code(error);
    String text = code.isEmpty() ? "" : error.getMessage().substring(code.length()).strip();
    return switch (code) {
      case "STALE" -> new GatehouseException.Stale(text);
      case "EXISTS" -> new GatehouseException.Exists(text);
      case "INVALID", "LIMIT" -> new GatehouseException.Invalid(text);
      case "ABSENT" -> new GatehouseException.NotFound("no such record: " + text);
      case "OOM" -> new GatehouseException.Full(
          "redis is full (maxmemory): nothing was written; only deletions and revocations succeed");
      default -> error;
    };
  }

  // Runs of the script.

  /** Reports whether Redis has a number of shards, and fails if it is another one. */
  private boolean checkShards() {
    String key = prefix(0) + "shards";
    String stored = Fields.text(first(await(send(CommandType.GET, key))));
    if (stored != null && !stored.equals(Integer.toString(shards))) {
      throw new GatehouseException.Shards(key + " is " + stored + ", this program is set to " + shards + " (shards)");
    }
    return stored != null;
  }

  /** Compares the number of shards with the one in Redis, and stores it there if there is none. */
  private void agree() {
    if (!agreed) {
      if (!checkShards()) { // only then: a Redis that is full refuses SET, also with NX
        await(send(CommandType.SET, prefix(0) + "shards", Integer.toString(shards), "NX"));
        checkShards();
      }
      agreed = true;
    }
  }

  private Call call(Mutation m, int shard, boolean audited) {
    String prefix = prefix(shard);
    List<String> keys = new ArrayList<>();
    for (String key : List.of(m.member, "seq", "log", "epoch", "chain")) {
      keys.add(prefix + key);
    }
    byte[] epoch = new byte[16];
    RANDOM.nextBytes(epoch);
    List<byte[]> args = new ArrayList<>();
    for (String arg : List.of(m.mode, m.version, HexFormat.of().formatHex(epoch), m.member,
        Long.toString(m.fields.containsKey("deleted") ? TOMBSTONE_LIFE_MS : 0), prefix + channel, publish, "")) {
      args.add(Fields.bytes(arg));
    }
    if (audited) {
      keys.add(prefix + "audit");
      args.add(Fields.bytes(author));
    }
    m.fields.forEach((field, value) -> {
      args.add(Fields.bytes(field));
      args.add(value);
    });
    return new Call(keys, args);
  }

  private void evaluate(CommandType command, byte[] script, List<Call> calls, List<Integer> these, Result[] results) {
    List<AsyncCommand<byte[], byte[], List<Object>>> sent = new ArrayList<>();
    for (int i : these) {
      CommandArgs<byte[], byte[]> args = new CommandArgs<>(ByteArrayCodec.INSTANCE).add(script);
      args.add(calls.get(i).keys.size());
      calls.get(i).keys.forEach(key -> args.addKey(Fields.bytes(key)));
      calls.get(i).args.forEach(args::add);
      sent.add(send(command, args));
    }
    boolean late = false; // those behind one without a reply in time have none, either: they were sent together
    for (int n = 0; n < sent.size(); n++) {
      try {
        List<Object> reply = late ? await(sent.get(n), 0) : await(sent.get(n));
        results[these.get(n)] =
            new Result(new Receipt(Fields.number(reply.get(0)), Fields.number(reply.get(1))), null);
      } catch (RuntimeException e) {
        late |= e instanceof RedisCommandTimeoutException;
        results[these.get(n)] = new Result(null, e);
      }
    }
  }

  /** Runs the script for each call. */
  private Result[] run(List<Call> calls) {
    Result[] results = new Result[calls.size()];
    List<Integer> pending = new ArrayList<>(IntStream.range(0, calls.size()).boxed().toList());
    Predicate<Integer> unknown = i -> codeOf(results[i]).equals("NOSCRIPT");
    Instant begin = Instant.now();
    for (long pause = 5;; ) {
      evaluate(CommandType.EVALSHA, SHA1, calls, pending, results);
      // The script itself, once for each shard whose server doesn't know it.
      Map<String, Integer> first = new LinkedHashMap<>();
      pending.stream().filter(unknown).forEach(i -> first.putIfAbsent(calls.get(i).keys.get(1), i));
      evaluate(CommandType.EVAL, SCRIPT, calls, List.copyOf(first.values()), results);
      pending.removeIf(i -> !MOVING.contains(codeOf(results[i])) && !unknown.test(i));
      if (pending.isEmpty() || Duration.between(begin, Instant.now()).compareTo(MOVING_FOR) > 0) {
        return results;
      }
      if (first.isEmpty()) {
        try {
          Thread.sleep(pause);
        } catch (InterruptedException e) {
          Thread.currentThread().interrupt();
          return results;
        }
        pause = Math.min(2 * pause, 200);
      }
    }
  }

  private static String codeOf(Result result) {
    return result.error() == null ? "" : code(result.error());
  }

  /** The results of writes, and, if Redis answered none of a round trip, why: nothing more was sent. */
  private record Written(List<Result> results, RuntimeException gone) {}

  /** Runs the script for each mutation, each atomic by itself, many in one round trip. */
  private Written writeAll(List<Mutation> mutations) {
    return writeAll(mutations, i -> Keys.shardOf(mutations.get(i).member.substring(2), shards));
  }

  private Written writeAll(List<Mutation> mutations, Function<Integer, Integer> shard) {
    List<Result> results = new ArrayList<>();
    RuntimeException gone = null;
    while (results.size() < mutations.size() && gone == null) {
      List<Integer> part = new ArrayList<>();
      int size = 0;
      for (int i = results.size(); i < mutations.size() && part.size() < MOST_RECORDS; i++) {
        size += mutations.get(i).size();
        if (!part.isEmpty() && size > MOST_BYTES) {
          break;
        }
        part.add(i);
      }
      try {
        agree();
        List<Result> written = writePart(mutations, part, shard);
        results.addAll(written);
        gone = written.stream().anyMatch(Publisher::answered) ? null : written.get(0).error();
      } catch (RuntimeException e) {
        gone = e;
      }
    }
    while (results.size() < mutations.size()) {
      results.add(new Result(null, gone));
    }
    return new Written(results, gone);
  }

  /** Reports whether a result is an answer of Redis. */
  private static boolean answered(Result result) {
    return result.error() == null || result.error() instanceof GatehouseException
        || result.error() instanceof RedisCommandExecutionException;
  }

  private List<Result> writePart(List<Mutation> mutations, List<Integer> part, Function<Integer, Integer> shard) {
    Predicate<Integer> device = i -> mutations.get(i).member.startsWith("c:");
    Result[] results =
        run(part.stream().map(i -> call(mutations.get(i), shard.apply(i), device.test(i))).toList());
    // Perhaps only the audit's key isn't permitted or, in a slot that moves, isn't there: a revocation must not need it.
    List<Integer> again = IntStream.range(0, part.size()).boxed().filter(n -> device.test(part.get(n))
        && (codeOf(results[n]).equals("NOPERM") || MOVING.contains(codeOf(results[n])))).toList();
    if (!again.isEmpty()) {
      Result[] unaudited = run(again.stream()
          .map(n -> call(mutations.get(part.get(n)), shard.apply(part.get(n)), false)).toList());
      for (int k = 0; k < unaudited.length; k++) {
        results[again.get(k)] = unaudited[k];
      }
    }
    for (Result result : results) {
      if (result.error() == null && result.receipt().seq() == 1) {
        agreed = false; // the shard was empty: Redis may have lost its data, and with it the number of shards
      }
    }
    return List.of(results);
  }

  private Receipt write(Mutation m) {
    return writeAll(List.of(m)).results.get(0).get();
  }

  // Objects.

  /** Publishes an object, with the encodings that are smaller than its body. */
  public Receipt put(GatehouseObject object) {
    return putAll(List.of(object)).get(0).get();
  }

  /**
   * Publishes objects, some hundreds in one round trip. Each is written by itself, or its result is the error. Once
   * Redis answers no write of a round trip, nothing more is sent, and the rest has its error.
   */
  public List<Result> putAll(List<GatehouseObject> objects) {
    Result[] results = new Result[objects.size()];
    RuntimeException gone = null;
    for (int from = 0; from < results.length && gone == null; from += MOST_RECORDS) {
      List<GatehouseObject> part = objects.subList(from, Math.min(from + MOST_RECORDS, results.length));
      Result[] written = new Result[part.size()];
      try {
        gone = putPart(part, written);
      } catch (RuntimeException e) { // it couldn't read whether objects are absent
        gone = e;
      }
      System.arraycopy(written, 0, results, from, written.length);
    }
    Result rest = new Result(null, gone);
    return Arrays.stream(results).map(result -> result == null ? rest : result).toList();
  }

  /** Publishes objects. It returns why nothing more should be sent, if Redis does not answer. */
  private RuntimeException putPart(List<GatehouseObject> objects, Result[] results) {
    Mutation[] mutations = new Mutation[objects.size()];
    IntStream.range(0, objects.size()).parallel().forEach(i -> {
      GatehouseObject o = objects.get(i);
      try {
        mutations[i] = new Mutation("replace", "o:" + Keys.canonical(o.key), o.fields(), o.versionArgument());
      } catch (GatehouseException e) {
        results[i] = new Result(null, e);
      }
    });
    List<Integer> plain = new ArrayList<>();
    List<Integer> absent = new ArrayList<>();
    for (int i = 0; i < mutations.length; i++) {
      if (mutations[i] != null) {
        (objects.get(i).ifAbsent ? absent : plain).add(i);
      }
    }
    RuntimeException gone = writeSome(mutations, plain, results);
    for (int attempt = 0; attempt < ATTEMPTS && !absent.isEmpty() && gone == null; attempt++) {
      absent.forEach(i -> results[i] = null);
      checkShards();
      List<Integer> free = new ArrayList<>();
      for (int i : absent) {
        String key = mutations[i].member.substring(2);
        Map<String, byte[]> head = head(mutations[i].member);
        long stored = Fields.number(head.get("version"));
        if (stored > 0 && !head.containsKey("deleted") && !purged(key, head, "hard")) {
          results[i] = new Result(null, new GatehouseException.Exists(key + " has version " + stored));
        } else {
          mutations[i] = new Mutation("replace", mutations[i].member, mutations[i].fields, "=" + stored);
          free.add(i);
        }
      }
      gone = writeSome(mutations, free, results);
      free.removeIf(i -> !(results[i].error() instanceof GatehouseException.Stale));
      absent = free;
    }
    return gone;
  }

  private RuntimeException writeSome(Mutation[] mutations, List<Integer> these, Result[] results) {
    Written written = writeAll(these.stream().map(i -> mutations[i]).toList());
    for (int n = 0; n < these.size(); n++) {
      results[these.get(n)] = written.results.get(n);
    }
    return written.gone;
  }

  /** Returns the fields of an object that tell whether it is there. */
  private Map<String, byte[]> head(String member) {
    Map<String, byte[]> head = new LinkedHashMap<>();
    Stream.of("version", "deleted", "tags", "seq")
        .map(field -> Map.entry(field, send(CommandType.HGET, prefixOf(member) + member, field))).toList()
        .forEach(sent -> {
          if (first(await(sent.getValue())) instanceof byte[] value) {
            head.put(sent.getKey(), value);
          }
        });
    return head;
  }

  /** Reports whether a purge, hard or soft, reaches an object. */
  private boolean purged(String key, Map<String, byte[]> record, String kind) {
    long seq = Fields.number(record.get("seq"));
    return Keys.purgesOf(key, Fields.split(record.get("tags"), ",")).stream()
        .map(id -> send(CommandType.HGET, prefixOf("o:" + key) + "p:" + id, kind)).toList().stream()
        .map(sent -> first(await(sent))).anyMatch(at -> at != null && Fields.number(at) >= seq);
  }

  /** Returns the object as Redis has it. */
  public StoredObject get(String key) {
    key = Keys.canonical(key);
    Map<String, byte[]> record =
        Fields.record(await(send(CommandType.HGETALL, prefixOf("o:" + key) + "o:" + key)));
    if (record.isEmpty()) {
      checkShards();
    }
    if (record.isEmpty() || record.containsKey("deleted") || purged(key, record, "hard")) {
      throw new GatehouseException.NotFound("no object " + key);
    }
    return StoredObject.parse(key, record, purged(key, record, "soft"));
  }

  /** Makes the edges forget an object. A key that has none is no error: late puts with older versions fail. */
  public Receipt delete(String key) {
    return delete(key, 0);
  }

  /** Deletes with a version of your own. */
  public Receipt delete(String key, long version) {
    Fields.checkVersion(version);
    return write(new Mutation("replace", "o:" + Keys.canonical(key), tombstone(), Long.toString(version)));
  }

  /** Deletes objects, as {@link #putAll} publishes. */
  public List<Result> deleteAll(List<String> keys) {
    Result[] results = new Result[keys.size()];
    Mutation[] mutations = new Mutation[keys.size()];
    List<Integer> good = new ArrayList<>();
    for (int i = 0; i < mutations.length; i++) {
      try {
        mutations[i] = new Mutation("replace", "o:" + Keys.canonical(keys.get(i)), tombstone());
        good.add(i);
      } catch (GatehouseException e) {
        results[i] = new Result(null, e);
      }
    }
    writeSome(mutations, good, results);
    return List.of(results);
  }

  private static Map<String, byte[]> tombstone() {
    return Map.of("deleted", Fields.bytes("1"));
  }

  /** Removes many objects at once. What is published afterwards stays. After an error, repeat it. */
  public void purge(Purge purge) {
    Mutation m = new Mutation("purge", "p:" + purge.id(), Map.of(purge.field(), Fields.bytes("1")));
    writeAll(Collections.nCopies(shards, m), i -> i).results.forEach(Result::get);
  }

  // Devices.

  /** Registers a device, or replaces its record, even a revoked one. */
  public Receipt putDevice(Device device) {
    return write(new Mutation(device.replace ? "replace" : "add", "c:" + device.id, device.fields(),
        Long.toString(device.version)));
  }

  private Map<String, byte[]> deviceRecord(String id) {
    Keys.checkDeviceId(id);
    Map<String, byte[]> record = Fields.record(await(send(CommandType.HGETALL, prefixOf("c:" + id) + "c:" + id)));
    if (record.isEmpty()) {
      checkShards();
    }
    if (record.isEmpty() || record.containsKey("deleted")) {
      throw new GatehouseException.NotFound("no device " + id);
    }
    return record;
  }

  /** Returns the device as Redis has it. */
  public StoredDevice getDevice(String id) {
    return StoredDevice.parse(id, deviceRecord(id));
  }

  /** Changes the fields of a device, again if its record was written meanwhile; not if change returns false. */
  private Receipt change(String id, Long ifVersion, BiFunction<StoredDevice, Map<String, byte[]>, Boolean> change) {
    for (int attempt = 1;; attempt++) {
      Map<String, byte[]> fields = deviceRecord(id);
      StoredDevice device = StoredDevice.parse(id, fields);
      if (ifVersion != null && device.version() != ifVersion) {
        throw new GatehouseException.Stale(
            "device " + id + " has version " + device.version() + ", want " + ifVersion);
      }
      List.of("version", "published", "seq").forEach(fields::remove);
      if (!change.apply(device, fields)) {
        return new Receipt(device.version(), 0);
      }
      try { // stale if the record was written meanwhile, or Redis has lost it
        return write(new Mutation("replace", "c:" + id, fields, "=" + device.version()));
      } catch (GatehouseException.Stale e) {
        if (ifVersion != null || attempt == ATTEMPTS) {
          throw e;
        }
      }
    }
  }

  /** Gives a device a new secret. */
  public Receipt rotateDevice(Rotation rotation) {
    String id = rotation.id;
    Keys.checkDeviceId(id);
    Secrets.check(id, rotation.secret);
    if (rotation.overlap != null && rotation.overlap.toMillis() < 1) {
      throw new GatehouseException.Invalid(
          "overlap " + rotation.overlap + " of " + id + ": want a millisecond at least, or none");
    }
    String hash = Secrets.hash(rotation.secret, rotation.cost, rotation.pepper);
    List<String> before = getDevice(id).hashes();
    if (!before.isEmpty() && Secrets.matches(before.get(0), rotation.secret, rotation.pepper)) {
      throw new GatehouseException.Invalid("secret of " + id + ": is the current one");
    }
    return change(id, rotation.ifVersion, (device, fields) -> {
      String current = device.hashes().isEmpty() ? null : device.hashes().get(0);
      if (hash.equals(current)) {
        return false; // an attempt before was applied, and its reply lost
      }
      fields.remove("old-until");
      fields.put("hash", Fields.bytes(hash));
      if (rotation.overlap != null && current != null) {
        fields.put("hash", Fields.bytes(hash + "\n" + current));
        fields.put("old-until", Fields.unixMillis("end of the overlap", Instant.now().plus(rotation.overlap)));
      }
      return true;
    });
  }

  /** Changes a device, and keeps the rest of its record, also the secret. */
  public Receipt setDevice(DeviceChange change) {
    return change(change.id, change.ifVersion, (device, fields) -> {
      change.apply(device, fields);
      return true;
    });
  }

  private State state(String member) {
    String prefix = prefixOf(member);
    var score = send(CommandType.ZSCORE, prefix + "log", member);
    var version = send(CommandType.HGET, prefix + member, "version");
    var tombstone = send(CommandType.HGET, prefix + member, "deleted");
    Object logged = first(await(score));
    Object stored = first(await(version));
    boolean deleted = first(await(tombstone)) != null;
    return new State(stored != null && !deleted, deleted, logged != null, Fields.number(stored));
  }

  /** Refuses a device from now on. */
  public Receipt revokeDevice(String id) {
    return revokeDevice(id, false);
  }

  /** Refuses a device from now on; with force also one that Redis doesn't have, which edges may still know. */
  public Receipt revokeDevice(String id, boolean force) {
    return withdraw(id, Map.of("disabled", Fields.bytes("revoked")), force);
  }

  /** Sets fields of a device's record, or writes a tombstone if there is none. */
  private Receipt withdraw(String id, Map<String, byte[]> fields, boolean force) {
    Keys.checkDeviceId(id);
    String member = "c:" + id;
    for (int attempt = 1;; attempt++) {
      try {
        return write(new Mutation("merge", member, fields));
      } catch (GatehouseException.NotFound e) {
        // Edges may have the device although its record is gone: a tombstone above the highest version that a writer can
        // have given, and above those counted after an earlier tombstone of this kind.
      }
      State state = state(member);
      if (!state.there && !force && (state.deleted || !state.logged)) {
        throw new GatehouseException.NotFound("no device " + id);
      }
      try {
        long above = Fields.MAX_OWN_VERSION + 1000 * System.currentTimeMillis();
        long version = state.version < above ? above : 0;
        return write(new Mutation("add", member, tombstone(), Long.toString(version)));
      } catch (GatehouseException.Stale | GatehouseException.Exists e) { // written meanwhile
        if (attempt == ATTEMPTS) {
          throw new GatehouseException.Stale("device " + id + " is written all the time");
        }
      }
    }
  }

  /** Makes the edges forget a device. */
  public Receipt deleteDevice(String id) {
    return deleteDevice(id, false);
  }

  /** Makes the edges forget a device; with force also one that Redis doesn't have. */
  public Receipt deleteDevice(String id, boolean force) {
    return withdraw(id, tombstone(), force);
  }

  /** Writes a tombstone where there is no record. */
  private Receipt invalidate(String id) {
    Keys.checkDeviceId(id);
    for (int attempt = 1;; attempt++) {
      State state = state("c:" + id);
      if (state.there) {
        throw new GatehouseException.Invalid(
            "device " + id + " has a record, which decides about it: revoke or delete it");
      }
      try { // stale if a record was written meanwhile
        return write(new Mutation("replace", "c:" + id, tombstone(), "=" + state.version));
      } catch (GatehouseException.Stale e) {
        if (attempt == ATTEMPTS) {
          throw e;
        }
      }
    }
  }

  /** Ends the verdicts of an authority on a device: it is asked again at the next request. */
  public Receipt invalidateDevice(String id) {
    if (id.startsWith("*")) {
      throw new GatehouseException.Invalid("device " + id + ": ids that begin with * are for invalidations");
    }
    return invalidate(id);
  }

  /** Is {@link #invalidateDevice} for all devices to which the authority gave a label. */
  public Receipt invalidateLabel(String name, String value) {
    return invalidate("*" + Fields.label("*", name, value));
  }

  /** Is {@link #invalidateDevice} for all devices without a record. */
  public Receipt invalidateAll() {
    return invalidate("*");
  }
}
