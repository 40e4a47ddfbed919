package io.github.gatehouse;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.protocol.CommandType;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.RedisCommand;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** What no server can be brought to answer. */
class AnswersTest {
  /** Returns a publisher to a Redis that answers by a function: null, "" for no answer, -ERROR, :RECEIPT or a value. */
  private static Publisher publisher(BiFunction<ProtocolKeyword, String, String> answer) {
    var connection = (StatefulConnection<?, ?>) Proxy.newProxyInstance(AnswersTest.class.getClassLoader(),
        new Class<?>[] {StatefulConnection.class}, (proxy, method, args) -> {
          if (method.getName().equals("getTimeout")) {
            return Duration.ofMillis(50);
          } else if (method.getName().equals("dispatch") && args[0] instanceof RedisCommand<?, ?, ?> command) {
            ByteBuf arguments = Unpooled.buffer();
            command.getArgs().encode(arguments);
            String reply = answer.apply(command.getType(), arguments.toString(StandardCharsets.UTF_8));
            if (reply == null) {
              command.getOutput().set((ByteBuffer) null);
            } else if (reply.startsWith("-")) {
              command.getOutput().setError(reply.substring(1));
            } else if (reply.startsWith(":")) { // version and number of a write
              command.getOutput().multi(2);
              command.getOutput().set(Long.parseLong(reply.substring(1)));
              command.getOutput().set(Long.parseLong(reply.substring(1)));
            } else if (!reply.isEmpty()) {
              command.getOutput().set(ByteBuffer.wrap(Fields.bytes(reply)));
            }
            if (reply == null || !reply.isEmpty()) {
              command.complete();
            }
          }
          return null;
        });
    @SuppressWarnings("unchecked")
    var typed = (StatefulConnection<byte[], byte[]>) connection;
    return new Publisher.Builder(builder -> new Publisher(typed, builder, 0, "PUBLISH")).build();
  }

  private static List<GatehouseObject> objects(int many, String body) {
    return IntStream.range(0, many).mapToObj(i -> GatehouseObject.of("/" + i, body, "text/plain")).toList();
  }

  /** Once Redis answers no write of a round trip, nothing more is sent, and the rest has its error. */
  @Test
  void stopsWithoutAnAnswer() {
    List<Integer> sent = new ArrayList<>();
    for (int answered : List.of(0, 512, 513)) {
      int[] evals = {0};
      Publisher publisher = publisher((command, args) -> {
        if (command != CommandType.EVALSHA) {
          return "1";
        }
        return ++evals[0] <= answered ? evals[0] == 513 ? "-ERR no" : ":7" : "";
      });
      List<Result> results = publisher.putAll(objects(2000, "a"));
      assertEquals(2000, results.size());
      for (int i = answered; i < 2000; i++) {
        assertTrue(results.get(i).error() instanceof RedisCommandTimeoutException, i + ": " + results.get(i));
      }
      sent.add(evals[0]);
    }
    assertEquals(List.of(512, 1024, 1536), sent);
  }

  /** So it is with parts that are as large as bodies may be, with deletions, and with objects that must be absent. */
  @Test
  void stopsParts() {
    int[] evals = {0};
    Publisher publisher = publisher((command, args) -> {
      evals[0] += command == CommandType.EVALSHA ? 1 : 0;
      return command == CommandType.EVALSHA ? "" : "1";
    });
    assertEquals(12, publisher.putAll(objects(12, "a".repeat(1 << 20))).size());
    assertEquals(3, evals[0]);
    evals[0] = 0;
    List<Result> deleted = publisher.deleteAll(IntStream.range(0, 2000).mapToObj(i -> "/" + i).toList());
    assertTrue(deleted.get(1999).error() instanceof RedisCommandTimeoutException, deleted.get(1999).toString());
    assertEquals(512, evals[0]);
  }

  /** What was written before Redis could not be read is told. */
  @Test
  void absentWithoutAnAnswer() {
    int[] reads = {0};
    Publisher publisher = publisher((command, args) -> {
      if (command == CommandType.HGET) {
        return ++reads[0] > 4 * 512 ? "" : null;
      }
      return command == CommandType.EVALSHA ? ":7" : "1";
    });
    List<Result> results = publisher.putAll(objects(1200, "a").stream().map(GatehouseObject::ifAbsent).toList());
    assertEquals(7, results.get(511).get().version());
    Stream.of(512, 1023, 1199).forEach(i ->
        assertTrue(results.get(i).error() instanceof RedisCommandTimeoutException, i + ": " + results.get(i)));
  }

  /** A record that is written again and again is not buried: a tombstone would delete the device. */
  @Test
  void revokeOfAMovingRecord() {
    List<String> writes = new ArrayList<>();
    Publisher publisher = publisher((command, args) -> {
      if (command == CommandType.EVALSHA) {
        writes.add(args);
        return args.contains("merge") ? "-ABSENT c:truck" : "-EXISTS c:truck";
      }
      return args.contains("deleted") ? null : "1";
    });
    assertThrows(GatehouseException.Stale.class, () -> publisher.revokeDevice("truck"));
    assertEquals(20, writes.size());
  }
}
