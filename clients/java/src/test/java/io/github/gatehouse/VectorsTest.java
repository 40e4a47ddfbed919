package io.github.gatehouse;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.aayushatharva.brotli4j.decoder.Decoder;
import com.github.luben.zstd.Zstd;
import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.sync.RedisClusterCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.RedisCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.CommandType;
import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import java.util.zip.GZIPInputStream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/**
 * Runs clients/vectors.json against one server and a Cluster: what GATEHOUSE_TEST_REDIS (a URL) and
 * GATEHOUSE_TEST_CLUSTER (HOST:PORT,…) name. `make clients` starts them.
 */
class VectorsTest {
  private static final JsonObject VECTORS = vectors();
  private static final RedisCodec<String, byte[]> CODEC = RedisCodec.of(StringCodec.UTF8, ByteArrayCodec.INSTANCE);

  private static JsonObject vectors() {
    try {
      return new Gson().fromJson(Files.readString(Path.of("../vectors.json")), JsonObject.class);
    } catch (java.io.IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }

  private static List<JsonObject> list(JsonObject from, String name) {
    JsonArray all = from.getAsJsonArray(name);
    return all == null ? List.of() : all.asList().stream().map(JsonElement::getAsJsonObject).toList();
  }

  private static String text(JsonObject from, String name) {
    return from.has(name) ? from.get(name).getAsString() : "";
  }

  private static long number(JsonObject from, String name) {
    return from.has(name) ? from.get(name).getAsLong() : 0;
  }

  private static boolean flag(JsonObject from, String name) {
    return from.has(name) && from.get(name).getAsBoolean();
  }

  private static String[] texts(JsonObject from, String name) {
    return from.has(name)
        ? from.getAsJsonArray(name).asList().stream().map(JsonElement::getAsString).toArray(String[]::new)
        : new String[0];
  }

  @Test
  void keys() {
    for (JsonObject vector : list(VECTORS, "keys")) {
      String key = text(vector, "key");
      if (vector.has("error")) {
        assertThrows(GatehouseException.Invalid.class, () -> Keys.canonical(key), key);
      } else {
        assertEquals(text(vector, "canonical"), Keys.canonical(key));
      }
    }
  }

  @Test
  void shards() {
    for (JsonObject vector : list(VECTORS, "shards")) {
      assertEquals(number(vector, "shard"), Keys.shardOf(text(vector, "id"), (int) number(vector, "shards")));
    }
  }

  @Test
  void secrets() {
    for (JsonObject vector : list(VECTORS, "secrets")) {
      String secret = text(vector, "secret");
      assertEquals(flag(vector, "generated"), Secrets.isGenerated(secret), secret);
      if (flag(vector, "generated")) {
        assertEquals(text(vector, "api_key_of_truck"), Secrets.apiKey("truck", secret));
      } else {
        assertThrows(GatehouseException.Invalid.class, () -> Secrets.apiKey("truck", secret));
      }
    }
    assertTrue(Secrets.isGenerated(Secrets.generate()));
    assertNotEquals(Secrets.generate(), Secrets.generate());
  }

  @Test
  void peppers() {
    for (JsonObject vector : list(VECTORS, "peppers")) {
      byte[] content = Fields.bytes(text(vector, "pepper"));
      if (vector.has("error")) {
        assertThrows(GatehouseException.Invalid.class, () -> new Pepper(content));
        continue;
      }
      Pepper pepper = new Pepper(content);
      assertEquals(text(vector, "id"), pepper.id());
      if (vector.has("hash")) {
        assertEquals(flag(vector, "matches"), pepper.matches(text(vector, "hash"), text(vector, "secret")));
      }
    }
  }

  /** A batch to a server that doesn't answer takes one timeout, not one for each write; a timeout of zero is none. */
  @Test
  void timeouts() {
    RedisURI uri = RedisURI.create(System.getenv("GATEHOUSE_TEST_REDIS"));
    String namespace = UUID.randomUUID().toString().substring(0, 23);
    RedisClient client = RedisClient.create();
    var raw = client.connect(uri).sync();
    var connection = client.connect(ByteArrayCodec.INSTANCE, uri);
    connection.setTimeout(Duration.ZERO); // in the URI, it would also end Lettuce's handshake at once
    try (Publisher publisher =
        new Publisher(connection, Publisher.builder(client, uri).namespace(namespace), 0, "PUBLISH")) {
      publisher.put(GatehouseObject.of("/a", "a", "text/plain"));
    }
    uri.setTimeout(Duration.ofSeconds(2));
    try (Publisher publisher = Publisher.builder(client, uri).namespace(namespace).build()) {
      publisher.put(GatehouseObject.of("/a", "b", "text/plain"));
      raw.dispatch(CommandType.CLIENT, new StatusOutput<>(StringCodec.UTF8),
          new CommandArgs<>(StringCodec.UTF8).add("PAUSE").add(60_000).add("WRITE"));
      long begin = System.nanoTime();
      List<Result> results = publisher.putAll(IntStream.range(0, 40)
          .mapToObj(i -> GatehouseObject.of("/" + i, "a", "text/plain")).toList());
      assertTrue(System.nanoTime() - begin < 10_000_000_000L, "it takes longer");
      results.forEach(result -> assertTrue(result.error() instanceof RedisCommandTimeoutException, result.toString()));
    } finally {
      raw.dispatch(CommandType.CLIENT, new StatusOutput<>(StringCodec.UTF8),
          new CommandArgs<>(StringCodec.UTF8).add("UNPAUSE"));
      client.shutdown();
    }
  }

  @TestFactory
  Stream<DynamicTest> oneServer() {
    RedisURI uri = RedisURI.create(System.getenv("GATEHOUSE_TEST_REDIS"));
    RedisClient client = RedisClient.create();
    var raw = client.connect(CODEC, uri);
    return cases(raw.sync(), () -> Publisher.builder(client, uri)).onClose(client::shutdown);
  }

  @TestFactory
  Stream<DynamicTest> cluster() {
    RedisClusterClient client = RedisClusterClient.create(Arrays.stream(System.getenv("GATEHOUSE_TEST_CLUSTER").split(","))
        .map(address -> RedisURI.create("redis://" + address)).toList());
    return cases(client.connect(CODEC).sync(), () -> Publisher.builder(client)).onClose(client::shutdown);
  }

  private static Stream<DynamicTest> cases(
      RedisClusterCommands<String, byte[]> raw, Supplier<Publisher.Builder> builder) {
    return list(VECTORS, "cases").stream()
        .map(vector -> DynamicTest.dynamicTest(text(vector, "name"), () -> run(raw, builder.get(), vector)));
  }

  private static void run(RedisClusterCommands<String, byte[]> raw, Publisher.Builder builder, JsonObject vector)
      throws Exception {
    String namespace = UUID.randomUUID().toString().substring(0, 23);
    int shards = Math.max(1, (int) number(vector, "shards"));
    List<JsonObject> steps = list(vector, "steps");
    try (Publisher publisher = builder.shards(shards).namespace(namespace).build()) {
      for (JsonObject step : steps) {
        String op = text(step, "op");
        if (op.equals("evict")) {
          String member = text(step, "member");
          raw.del(prefix(namespace, Keys.shardOf(member.substring(2), shards)) + member);
        } else if (step.has("results")) {
          List<Result> results = op.equals("put_many")
              ? publisher.putAll(list(step, "objects").stream().map(VectorsTest::object).toList())
              : publisher.deleteAll(List.of(texts(step, "keys")));
          JsonArray got = new JsonArray();
          results.forEach(result -> got.add(outcome(() -> result.get().version())));
          assertEquals(step.get("results"), got);
        } else {
          assertEquals(step.get("want"), outcome(() -> step(publisher, step)), step.toString());
        }
      }
    }
    Map<String, Map<String, byte[]>> records = new TreeMap<>();
    for (int shard = 0; shard < shards; shard++) {
      for (byte[] bytes : raw.zrange(prefix(namespace, shard) + "log", 0, -1)) {
        String member = Fields.text(bytes);
        Map<String, byte[]> record = raw.hgetall(prefix(namespace, shard) + member);
        if (!record.isEmpty()) {
          records.put(member, record);
        }
      }
    }
    JsonObject want = vector.getAsJsonObject("records");
    assertEquals(new java.util.TreeSet<>(want.keySet()), records.keySet());
    for (String member : want.keySet()) {
      check(member, records.get(member), want.getAsJsonObject(member), steps);
    }
  }

  private static String prefix(String namespace, int shard) {
    return "{gatehouse." + namespace + ":" + shard + "}:";
  }

  private static JsonObject outcome(Supplier<Long> operation) {
    JsonObject outcome = new JsonObject();
    try {
      long version = operation.get();
      if (version > 0 && version % (1L << 52) < 1_600_000_000_000L) { // others are times
        outcome.addProperty("version", version);
      }
    } catch (GatehouseException e) {
      String kind = e.getClass().getSimpleName();
      outcome.addProperty("error", kind.equals("NotFound") ? "not_found" : kind.toLowerCase(java.util.Locale.ROOT));
    }
    return new Gson().fromJson(outcome.toString(), JsonObject.class);
  }

  private static GatehouseObject object(JsonObject step) {
    byte[] body = step.has("body_base64") ? Base64.getDecoder().decode(text(step, "body_base64"))
        : Fields.bytes(text(step, "body").repeat(Math.max(1, (int) number(step, "times"))));
    GatehouseObject o = GatehouseObject.of(text(step, "key"), body, text(step, "content_type"))
        .etag(text(step, "etag")).version(number(step, "version")).tags(texts(step, "tags"));
    if (step.has("ttl_ms")) {
      o.ttl(Duration.ofMillis(number(step, "ttl_ms")));
    }
    if (step.has("status")) {
      o.status((int) number(step, "status"));
    }
    if (step.has("headers")) {
      step.getAsJsonArray("headers").forEach(pair ->
          o.header(pair.getAsJsonArray().get(0).getAsString(), pair.getAsJsonArray().get(1).getAsString()));
    }
    if (step.has("if_version")) {
      o.ifVersion(number(step, "if_version"));
    }
    return flag(step, "if_absent") ? o.ifAbsent() : o;
  }

  private static Map<String, JsonElement> labels(JsonObject step) {
    return step.has("labels") ? step.getAsJsonObject("labels").asMap() : Map.of();
  }

  private static Pepper pepper(JsonObject step) {
    return step.has("pepper") ? new Pepper(Fields.bytes(text(step, "pepper"))) : null;
  }

  private static Purge purge(JsonObject step) {
    boolean tag = step.has("tag");
    boolean prefix = step.has("prefix");
    if (tag == prefix && !flag(step, "all")) { // which the types of this client don't allow
      throw new GatehouseException.Invalid("one of tag, prefix and all");
    }
    Purge purge = tag ? Purge.tag(text(step, "tag")) : prefix ? Purge.prefix(text(step, "prefix")) : Purge.all();
    purge.virtualHost(text(step, "virtual_host"));
    return flag(step, "soft") ? purge.soft() : purge;
  }

  private static long step(Publisher publisher, JsonObject step) {
    String id = text(step, "id");
    int cost = step.has("cost") ? (int) number(step, "cost") : 12;
    switch (text(step, "op")) {
      case "put":
        return publisher.put(object(step)).version();
      case "get":
        return publisher.get(text(step, "key")).version();
      case "delete":
        return publisher.delete(text(step, "key"), number(step, "version")).version();
      case "purge":
        publisher.purge(purge(step));
        return 0;
      case "put_device":
        if (step.has("secret") && step.has("hashes")) { // which the types of this client don't allow
          throw new GatehouseException.Invalid("a secret or hashes");
        }
        Device device = step.has("secret") ? Device.withSecret(id, text(step, "secret"))
            : Device.withHashes(id, texts(step, "hashes"));
        device.permissions(texts(step, "permissions")).cost(cost).pepper(pepper(step)).version(number(step, "version"));
        labels(step).forEach((name, value) -> device.label(name, value.getAsString()));
        if (step.has("not_after_ms")) {
          device.notAfter(Instant.ofEpochMilli(number(step, "not_after_ms")));
        }
        if (flag(step, "disabled")) {
          device.disabled();
        }
        return publisher.putDevice(flag(step, "keep") ? device.ifAbsent() : device).version();
      case "get_device":
        return publisher.getDevice(id).version();
      case "rotate_device":
        Rotation rotation = Rotation.of(id, text(step, "secret")).cost(cost).pepper(pepper(step));
        if (step.has("overlap_ms")) {
          rotation.overlap(Duration.ofMillis(number(step, "overlap_ms")));
        }
        return publisher.rotateDevice(step.has("version") ? rotation.ifVersion(number(step, "version")) : rotation)
            .version();
      case "set_device":
        DeviceChange change = DeviceChange.of(id).add(texts(step, "add")).remove(texts(step, "remove"));
        labels(step).forEach((name, value) -> change.label(name, value instanceof JsonNull ? null : value.getAsString()));
        if (step.has("not_after_ms")) {
          change.notAfter(number(step, "not_after_ms") == 0 ? null : Instant.ofEpochMilli(number(step, "not_after_ms")));
        }
        if (step.has("disabled")) {
          change.disabled(flag(step, "disabled"));
        }
        if (flag(step, "end_overlap")) {
          change.endOverlap();
        }
        return publisher.setDevice(step.has("version") ? change.ifVersion(number(step, "version")) : change).version();
      case "revoke_device":
        return publisher.revokeDevice(id, flag(step, "force")).version();
      case "delete_device":
        return publisher.deleteDevice(id, flag(step, "force")).version();
      case "invalidate_device":
        return publisher.invalidateDevice(id).version();
      case "invalidate_label":
        return publisher.invalidateLabel(text(step, "name"), text(step, "value")).version();
      case "invalidate_all":
        return publisher.invalidateAll().version();
      default:
        throw new AssertionError("no operation " + step);
    }
  }

  /** Returns a hash as the vectors have it: itself if a step gives it, otherwise scheme and secret. */
  private static String described(String hash, List<JsonObject> steps) {
    for (JsonObject step : steps) {
      if (step.has("secret") && !List.of(texts(step, "hashes")).contains(hash)
          && Secrets.matches(hash, text(step, "secret"), pepper(step))) {
        String scheme = hash.startsWith("$2") ? "bcrypt " + Integer.parseInt(hash.substring(4, 6))
            : "gh1 " + hash.split("\\$")[2];
        return scheme + " of " + text(step, "secret");
      }
    }
    return hash;
  }

  /** Compares a record in Redis with the vectors'. */
  private static void check(String member, Map<String, byte[]> record, JsonObject want, List<JsonObject> steps)
      throws Exception {
    Map<String, byte[]> got = new TreeMap<>(record);
    List.of("version", "published", "seq").forEach(got::remove);
    List<String> codings = got.keySet().stream().filter(name -> name.startsWith("body.")).toList();
    assertEquals(List.of(texts(want, "codings")), codings, member);
    for (String name : codings) {
      byte[] encoded = got.remove(name);
      byte[] decoded = switch (name) {
        case "body.gzip" -> new GZIPInputStream(new ByteArrayInputStream(encoded)).readAllBytes();
        case "body.br" -> Decoder.decompress(encoded).getDecompressedData();
        default -> Zstd.decompress(encoded, 1 << 21);
      };
      assertEquals(sha256(got.get("body")), sha256(decoded), name);
    }
    JsonObject all = new JsonObject();
    if (want.has("codings")) {
      all.add("codings", want.get("codings"));
    }
    for (Map.Entry<String, byte[]> field : got.entrySet()) {
      String value = Fields.text(field.getValue());
      JsonElement wanted = want.get(field.getKey());
      if (field.getKey().equals("hash")) {
        all.add("hash", new Gson().toJsonTree(
            Arrays.stream(value.split("\n")).map(hash -> described(hash, steps)).collect(Collectors.toList())));
      } else if (field.getKey().equals("old-until")) {
        long left = Long.parseLong(value) - System.currentTimeMillis();
        long overlap = number(wanted.getAsJsonObject(), "in_ms");
        assertTrue(overlap - 60_000 < left && left <= overlap, () -> "old-until in " + left);
        all.add("old-until", wanted);
      } else if (wanted instanceof JsonObject) {
        JsonObject digest = new JsonObject();
        digest.addProperty("sha256", sha256(field.getValue()));
        all.add(field.getKey(), digest);
      } else {
        all.add(field.getKey(), new JsonPrimitive(value));
      }
    }
    assertEquals(want, all, member);
  }

  private static String sha256(byte[] data) throws Exception {
    return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(data));
  }
}
