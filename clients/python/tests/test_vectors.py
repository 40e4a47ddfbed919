"""Runs clients/vectors.json with both publishers, against one server and a Cluster: what GATEHOUSE_TEST_REDIS (a URL)
and GATEHOUSE_TEST_CLUSTER (HOST:PORT,…) name. `make clients` starts them."""

import asyncio
import base64
import gzip
import hashlib
import json
import os
import pathlib
import secrets
import time
import unittest
from datetime import datetime, timedelta, timezone

import brotli
import redis
import redis.asyncio
import zstandard

import gatehouse
from gatehouse.hashes import matches

VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "vectors.json").read_text())
KINDS = {
    gatehouse.StaleError: "stale",
    gatehouse.NotFoundError: "not_found",
    gatehouse.InvalidError: "invalid",
    gatehouse.ExistsError: "exists",
    gatehouse.FullError: "full",
    gatehouse.CorruptError: "corrupt",
}
DECODERS = {
    "body.gzip": gzip.decompress,
    "body.br": brotli.decompress,
    "body.zstd": lambda data: zstandard.ZstdDecompressor().decompress(data, 1 << 21),
}


def cluster_nodes(kind):
    return [kind(*address.split(":")) for address in os.environ["GATEHOUSE_TEST_CLUSTER"].split(",")]


class Blocking:
    """A publisher for asyncio that blocks, so that one test runs both."""

    def __init__(self, publisher):
        self.publisher = publisher

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            return getattr(self.publisher, name)(*args, **kwargs)

        return call


def outcome(result):
    if isinstance(result, tuple(KINDS)):
        return {"error": KINDS[type(result)]}
    if isinstance(result, Exception):
        raise result
    version = getattr(result, "version", 0)
    return {"version": version} if version and version % 2**52 < 1_600_000_000_000 else {}  # others are times


def object_of(step):
    body = base64.b64decode(step["body_base64"]) if "body_base64" in step else step.get("body", "").encode()
    names = ("etag", "version", "if_version", "if_absent", "status", "tags")
    return gatehouse.Object(
        step.get("key", ""),
        body * step.get("times", 1),
        step.get("content_type", ""),
        ttl=timedelta(milliseconds=step["ttl_ms"]) if "ttl_ms" in step else None,
        headers=[tuple(pair) for pair in step.get("headers", ())],
        **{name: step[name] for name in names if name in step},
    )


def time_of(ms):
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


async def run(publisher, step):
    """The result of a step."""
    op = step["op"]

    def pick(*names):
        return {name: step[name] for name in names if name in step}

    if op == "put":
        return await publisher.put(object_of(step))
    if op == "get":
        return await publisher.get(step["key"])
    if op == "delete":
        return await publisher.delete(step["key"], **pick("version"))
    if op == "purge":
        return await publisher.purge(**pick("tag", "prefix", "all", "virtual_host", "soft"))
    if op in ("invalidate_all",):
        return await publisher.invalidate_all()
    if op == "invalidate_label":
        return await publisher.invalidate_label(step["name"], step["value"])
    if op in ("revoke_device", "delete_device"):
        return await getattr(publisher, op)(step["id"], force=step.get("force", False))
    if op in ("get_device", "invalidate_device"):
        return await getattr(publisher, op)(step["id"])
    options = pick("permissions", "labels", "disabled", "cost", "hashes", "end_overlap", "add", "remove")
    if "pepper" in step:
        options["pepper"] = gatehouse.Pepper(step["pepper"])
    if "not_after_ms" in step:
        options["not_after"] = time_of(step["not_after_ms"]) if step["not_after_ms"] else "never"
    if "overlap_ms" in step:
        options["overlap"] = timedelta(milliseconds=step["overlap_ms"])
    if op == "put_device":
        options.update(pick("version"), replace=not step.get("keep"))
        return await publisher.put_device(step.get("id", ""), step.get("secret"), **options)
    options["if_version"] = step.get("version")
    if op == "rotate_device":
        return await publisher.rotate_device(step["id"], step.get("secret", ""), **options)
    if op == "set_device":
        return await publisher.set_device(step["id"], **options)
    raise AssertionError(f"no operation {op}")


def described(hash, steps):
    """A hash as the vectors have it: itself if a step gives it, otherwise scheme and secret."""
    for step in steps:
        pepper = gatehouse.Pepper(step["pepper"]) if "pepper" in step else None
        if "secret" in step and hash not in step.get("hashes", ()) and matches(hash, step["secret"], pepper):
            scheme = f"bcrypt {int(hash[4:6])}" if hash.startswith("$2") else f"gh1 {hash.split('$')[2]}"
            return f"{scheme} of {step['secret']}"
    return hash


class VectorsTest(unittest.TestCase):
    def test_keys(self):
        for vector in VECTORS["keys"]:
            with self.subTest(vector["key"][:80]):
                if "error" in vector:
                    self.assertRaises(gatehouse.InvalidError, gatehouse.canonical, vector["key"])
                else:
                    self.assertEqual(gatehouse.canonical(vector["key"]), vector["canonical"])

    def test_slips(self):
        publisher = gatehouse.Publisher(redis.Redis())
        for slip in ({"tags": "season"}, {"ttl": 600}):
            o = gatehouse.Object("/a", b"", "text/plain", **slip)
            self.assertRaisesRegex(gatehouse.InvalidError, "of '/a': want a", publisher.put, o)

    def test_shards(self):
        for vector in VECTORS["shards"]:
            self.assertEqual(gatehouse.shard_of(vector["id"], vector["shards"]), vector["shard"], vector)

    def test_secrets(self):
        for vector in VECTORS["secrets"]:
            self.assertEqual(gatehouse.is_generated(vector["secret"]), vector["generated"], vector)
            if vector["generated"]:
                self.assertEqual(gatehouse.api_key("truck", vector["secret"]), vector["api_key_of_truck"])
            else:
                self.assertRaises(gatehouse.InvalidError, gatehouse.api_key, "truck", vector["secret"])
        self.assertTrue(gatehouse.is_generated(gatehouse.new_secret()))
        self.assertNotEqual(gatehouse.new_secret(), gatehouse.new_secret())

    def test_peppers(self):
        for vector in VECTORS["peppers"]:
            if "error" in vector:
                self.assertRaises(gatehouse.InvalidError, gatehouse.Pepper, vector["pepper"])
                continue
            pepper = gatehouse.Pepper(vector["pepper"])
            self.assertEqual(pepper.id, vector["id"])
            if "hash" in vector:
                matched = pepper.matches(vector["hash"], vector["secret"])
                self.assertEqual(matched, vector.get("matches", False), vector)

    def test_blocking_single(self):
        client = redis.Redis.from_url(os.environ["GATEHOUSE_TEST_REDIS"], decode_responses=True)
        asyncio.run(self.cases(lambda **options: Blocking(gatehouse.Publisher(client, **options))))

    def test_blocking_cluster(self):
        client = redis.RedisCluster(startup_nodes=cluster_nodes(redis.cluster.ClusterNode))
        asyncio.run(self.cases(lambda **options: Blocking(gatehouse.Publisher(client, **options))))

    def test_async_single(self):
        async def test():
            async with redis.asyncio.Redis.from_url(os.environ["GATEHOUSE_TEST_REDIS"]) as client:
                await self.cases(lambda **options: gatehouse.AsyncPublisher(client, **options))

        asyncio.run(test())

    def test_async_cluster(self):
        async def test():
            nodes = cluster_nodes(redis.asyncio.cluster.ClusterNode)
            async with redis.asyncio.RedisCluster(startup_nodes=nodes, decode_responses=True) as client:
                await self.cases(lambda **options: gatehouse.AsyncPublisher(client, **options))

        asyncio.run(test())

    async def cases(self, connect):
        cluster = "cluster" in self.id()
        if cluster:
            raw = redis.RedisCluster(startup_nodes=cluster_nodes(redis.cluster.ClusterNode))
        else:
            raw = redis.Redis.from_url(os.environ["GATEHOUSE_TEST_REDIS"])
        for case in VECTORS["cases"]:
            namespace = secrets.token_hex(8)
            shards = case.get("shards", 1)
            publisher = connect(shards=shards, namespace=namespace)

            def prefix(shard):
                return "{gatehouse.%s:%d}:" % (namespace, shard)

            for number, step in enumerate(case["steps"]):
                with self.subTest(case["name"], step=number):
                    if step["op"] == "evict":
                        raw.delete(prefix(gatehouse.shard_of(step["member"][2:], shards)) + step["member"])
                    elif step["op"] in ("put_many", "delete_many"):
                        many = [object_of(o) for o in step["objects"]] if "objects" in step else step["keys"]
                        results = await getattr(publisher, step["op"])(many)
                        self.assertEqual([outcome(r) for r in results], step["results"])
                    else:
                        try:
                            result = await run(publisher, step)
                        except gatehouse.GatehouseError as error:
                            result = error
                        self.assertEqual(outcome(result), step["want"], result)
            with self.subTest(case["name"]):
                records = {}
                for shard in range(shards):
                    for member in raw.zrange(prefix(shard) + "log", 0, -1):
                        record = raw.hgetall(prefix(shard) + member.decode())
                        if record:
                            records[member.decode()] = {name.decode(): value for name, value in record.items()}
                self.assertEqual(sorted(records), sorted(case["records"]))
                for member, want in case["records"].items():
                    self.check(records[member], want, case["steps"])

    def check(self, record, want, steps):
        """Compares a record in Redis with the vectors'."""
        got = {name: value for name, value in record.items() if name not in ("version", "published", "seq")}
        codings = sorted(name for name in got if name.startswith("body."))
        self.assertEqual(codings, want.get("codings", []))
        for name in codings:
            self.assertEqual(DECODERS[name](got.pop(name)), got["body"])
        want = {name: value for name, value in want.items() if name != "codings"}
        if "hash" in got:
            got["hash"] = [described(hash, steps) for hash in got["hash"].decode().split("\n")]
        if "old-until" in got:
            left = int(got.pop("old-until")) - time.time() * 1000
            overlap = want.pop("old-until")["in_ms"]
            self.assertTrue(overlap - 60_000 < left <= overlap, left)
        for name, value in want.items():
            if isinstance(value, dict):
                got[name] = {"sha256": hashlib.sha256(got.get(name, b"")).hexdigest()}
        self.assertEqual({k: v.decode() if isinstance(v, bytes) else v for k, v in got.items()}, want)


if __name__ == "__main__":
    unittest.main()
