"""Runs operations, one a line: its name and arguments, separated by tabs. Prints "ok VERSION", "error KIND" of the
package, or "lost ERROR" of the library. Arguments: blocking or asyncio, single or cluster, HOST:PORT,…, the namespace."""

import asyncio
import sys

import redis
import redis.asyncio
from redis.backoff import NoBackoff

from gatehouse import (
    AsyncPublisher, ExistsError, GatehouseError, InvalidError, NotFoundError, Object, Publisher, StaleError,
)

KINDS = {StaleError: "stale", NotFoundError: "not_found", InvalidError: "invalid", ExistsError: "exists"}


def connect(kind, deployment, addresses, namespace):
    module, retry = redis, redis.retry.Retry
    if kind == "asyncio":
        module, retry = redis.asyncio, redis.asyncio.retry.Retry
    publisher = AsyncPublisher if kind == "asyncio" else Publisher
    options = {"retry": retry(NoBackoff(), 3)}  # as by default, without the pauses
    nodes = [address.split(":") for address in addresses.split(",")]
    if deployment == "cluster":
        startup = [module.cluster.ClusterNode(host, int(port)) for host, port in nodes]
        return publisher(module.RedisCluster(startup_nodes=startup), namespace=namespace)
    return publisher(module.Redis(host=nodes[0][0], port=int(nodes[0][1]), **options), namespace=namespace)


def call(p, op, a, *rest):
    text = "text/plain"
    return {
        "put": lambda: p.put(Object(a, rest[0].encode(), text, tags=[rest[1]])),
        "put_version": lambda: p.put(Object(a, rest[0].encode(), text, tags=[rest[1]], version=int(rest[2]))),
        "put_if": lambda: p.put(Object(a, rest[0].encode(), text, tags=[rest[1]], if_version=int(rest[2]))),
        "put_absent": lambda: p.put(Object(a, rest[0].encode(), text, tags=[rest[1]], if_absent=True)),
        "delete": lambda: p.delete(a),
        "purge": lambda: p.purge(tag=a),
        "put_device": lambda: p.put_device(a, hashes=[rest[0]]),
        "add_device": lambda: p.put_device(a, hashes=[rest[0]], replace=False),
        "set_device": lambda: p.set_device(a, add=[rest[0]]),
        "rotate_device": lambda: p.rotate_device(a, rest[0], cost=4),
        "revoke_device": lambda: p.revoke_device(a),
        "force_revoke_device": lambda: p.revoke_device(a, force=True),
        "delete_device": lambda: p.delete_device(a),
        "force_delete_device": lambda: p.delete_device(a, force=True),
        "invalidate_device": lambda: p.invalidate_device(a),
    }[op]()


async def main():
    publisher = connect(*sys.argv[1:])
    for line in sys.stdin:
        try:
            result = call(publisher, *line.rstrip("\n").split("\t"))
            if sys.argv[1] == "asyncio":
                result = await result
            print("ok", getattr(result, "version", 0), flush=True)
        except GatehouseError as error:
            print("error", KINDS[type(error)], flush=True)
        except Exception as error:
            print("lost", repr(error).replace("\n", " "), flush=True)


asyncio.run(main())
