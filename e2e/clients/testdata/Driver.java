import io.github.gatehouse.*;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;

/** Runs operations as driver.py does. Arguments: single or cluster, HOST:PORT,…, the namespace. */
public class Driver {
  public static void main(String[] args) throws Exception {
    var uris = Arrays.stream(args[1].split(",")).map(address -> RedisURI.create("redis://" + address)).toList();
    Publisher p = args[0].equals("cluster")
        ? Publisher.builder(RedisClusterClient.create(uris)).namespace(args[2]).build()
        : Publisher.builder(RedisClient.create(), uris.get(0)).namespace(args[2]).build();
    var lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String result;
      try {
        result = "ok " + call(p, line.split("\t"));
      } catch (GatehouseException e) {
        String kind = e.getClass().getSimpleName();
        result = "error " + (kind.equals("NotFound") ? "not_found" : kind.toLowerCase());
      } catch (RuntimeException e) {
        result = "lost " + e.toString().replace('\n', ' ');
      }
      System.out.println(result);
      System.out.flush();
    }
    System.exit(0);
  }

  private static GatehouseObject object(String[] a) {
    return GatehouseObject.of(a[1], a[2], "text/plain").tags(a[3]);
  }

  private static long call(Publisher p, String[] a) {
    return switch (a[0]) {
      case "put" -> p.put(object(a)).version();
      case "put_version" -> p.put(object(a).version(Long.parseLong(a[4]))).version();
      case "put_if" -> p.put(object(a).ifVersion(Long.parseLong(a[4]))).version();
      case "put_absent" -> p.put(object(a).ifAbsent()).version();
      case "delete" -> p.delete(a[1]).version();
      case "purge" -> {
        p.purge(Purge.tag(a[1]));
        yield 0;
      }
      case "put_device" -> p.putDevice(Device.withHashes(a[1], a[2])).version();
      case "add_device" -> p.putDevice(Device.withHashes(a[1], a[2]).ifAbsent()).version();
      case "set_device" -> p.setDevice(DeviceChange.of(a[1]).add(a[2])).version();
      case "rotate_device" -> p.rotateDevice(Rotation.of(a[1], a[2]).cost(4)).version();
      case "revoke_device" -> p.revokeDevice(a[1]).version();
      case "force_revoke_device" -> p.revokeDevice(a[1], true).version();
      case "delete_device" -> p.deleteDevice(a[1]).version();
      case "force_delete_device" -> p.deleteDevice(a[1], true).version();
      case "invalidate_device" -> p.invalidateDevice(a[1]).version();
      default -> throw new IllegalArgumentException(a[0]);
    };
  }
}
