// Runs clients/vectors.json against one server and a Cluster: what GATEHOUSE_TEST_REDIS (a URL) and
// GATEHOUSE_TEST_CLUSTER (HOST:PORT,…) name. `make clients` starts them.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import test from 'node:test'
import zlib from 'node:zlib'
import * as gatehouse from '@gatehouse/client'
import { createClient, createCluster } from 'redis'

const vectors = JSON.parse(readFileSync(new URL('../../vectors.json', import.meta.url)))
const kinds = {
  StaleError: 'stale', NotFoundError: 'not_found', InvalidError: 'invalid', ExistsError: 'exists', FullError: 'full',
  CorruptError: 'corrupt',
}
const decoders = { 'body.gzip': zlib.gunzipSync, 'body.br': zlib.brotliDecompressSync, 'body.zstd': zlib.zstdDecompressSync }

test('keys', () => {
  for (const { key, canonical } of vectors.keys) {
    if (canonical === undefined) assert.throws(() => gatehouse.canonical(key), gatehouse.InvalidError, key)
    else assert.equal(gatehouse.canonical(key), canonical)
  }
})

test('slips', async () => {
  const publisher = new gatehouse.Publisher(createClient())
  for (const slip of [{ tags: 'season' }, { contentType: undefined }]) {
    const o = { key: '/a', body: '', contentType: 'text/plain', ...slip }
    await assert.rejects(publisher.put(o), { name: 'InvalidError', message: /of \/a: want a/ })
  }
})

/** A publisher to a Redis that answers with what a function of the command returns. */
const answered = (answer) => new gatehouse.Publisher({
  sendCommand: async (command) => {
    const reply = answer(command)
    if (reply instanceof Error) throw reply
    return reply
  },
})
const many = (n, more) =>
  Array.from({ length: n }, (_, i) => ({ key: `/${i}`, body: 'a', contentType: 'text/plain', ...more }))
const gone = new Error('the socket was closed')

test('once Redis answers no write of a round trip, nothing more is sent', async () => {
  for (const [answers, want] of [[0, 512], [512, 1024], [513, 1536]]) {
    let writes = 0
    const publisher = answered(([name]) => {
      if (name !== 'EVALSHA') return '1'
      if (++writes > answers) return gone
      return writes === 513 ? new Error('ERR no') : [7, 7]
    })
    const results = await publisher.putMany(many(2000))
    assert.equal(results.length, 2000)
    assert.equal(writes, want)
    assert(results.slice(answers).every((result) => result === gone))
    writes = answers
    assert.equal((await publisher.deleteMany(many(2000).map(({ key }) => key)))[1999], gone)
    assert.equal(writes, answers + 512)
  }
  let writes = 0
  const large = many(12, { body: 'a'.repeat(1 << 20) })
  await answered(([name]) => (name === 'EVALSHA' ? (writes++, gone) : '1')).putMany(large)
  assert.equal(writes, 3)
})

test('what was written before Redis could not be read is told', async () => {
  let reads = 0
  const publisher = answered(([name]) => {
    if (name === 'HGET') return ++reads > 4 * 512 ? gone : null
    return name === 'EVALSHA' ? [7, 7] : '1'
  })
  const results = await publisher.putMany(many(1200, { ifAbsent: true }))
  assert.deepEqual(results[511], { version: 7, seq: 7 })
  assert(results.length === 1200 && results.slice(512).every((result) => result === gone))
})

test('a record that is written again and again is not buried', async () => {
  let writes = 0
  const publisher = answered((command) => {
    if (command[0] === 'EVALSHA') return writes++, new Error(`${command.includes('merge') ? 'ABSENT' : 'EXISTS'} c:truck`)
    return command[2] === 'deleted' ? null : '1'
  })
  await assert.rejects(publisher.revokeDevice('truck'), gatehouse.StaleError)
  assert.equal(writes, 20)
})

test('shards', () => {
  for (const { id, shards, shard } of vectors.shards) assert.equal(gatehouse.shardOf(id, shards), shard, id)
})

test('secrets', () => {
  for (const vector of vectors.secrets) {
    assert.equal(gatehouse.isGenerated(vector.secret), vector.generated, vector.secret)
    if (vector.generated) assert.equal(gatehouse.apiKey('truck', vector.secret), vector.api_key_of_truck)
    else assert.throws(() => gatehouse.apiKey('truck', vector.secret), gatehouse.InvalidError)
  }
  assert(gatehouse.isGenerated(gatehouse.newSecret()))
  assert.notEqual(gatehouse.newSecret(), gatehouse.newSecret())
})

test('peppers', () => {
  for (const vector of vectors.peppers) {
    if (vector.error) {
      assert.throws(() => new gatehouse.Pepper(vector.pepper), gatehouse.InvalidError)
      continue
    }
    const pepper = new gatehouse.Pepper(vector.pepper)
    assert.equal(pepper.id, vector.id)
    if (vector.hash !== undefined) assert.equal(pepper.matches(vector.hash, vector.secret), vector.matches ?? false)
  }
})

test('cases, one server', async (t) => {
  const client = await createClient({ url: process.env.GATEHOUSE_TEST_REDIS, RESP: 3 }).connect()
  t.after(() => client.destroy())
  await cases(t, client, (key, ...args) => client.sendCommand(args, { typeMapping: { 36: Buffer, 44: String } }))
})

test('cases, a Cluster', async (t) => {
  const rootNodes = process.env.GATEHOUSE_TEST_CLUSTER.split(',').map((address) => ({ url: `redis://${address}` }))
  const client = await createCluster({ rootNodes, RESP: 2 }).connect()
  t.after(() => client.destroy())
  await cases(t, client, (key, ...args) => client.sendCommand(key, false, args, { typeMapping: { 36: Buffer } }))
})

function outcome(result) {
  if (result instanceof Error) {
    assert(kinds[result.name], result)
    return { error: kinds[result.name] }
  }
  const version = result?.version
  return version && version % 2 ** 52 < 1_600_000_000_000 ? { version } : {} // others are times
}

function objectOf(step) {
  const body = step.body_base64 ? Buffer.from(step.body_base64, 'base64') : (step.body ?? '').repeat(step.times ?? 1)
  const { key = '', content_type: contentType = '', ttl_ms: ttl, if_version: ifVersion, if_absent: ifAbsent } = step
  const { etag, status, headers, tags, version } = step
  return { key, body, contentType, ttl, ifVersion, ifAbsent, etag, status, headers, tags, version }
}

async function run(publisher, step) {
  const { id = '', secret, version, force, overlap_ms: overlap, cost } = step
  const pepper = step.pepper && new gatehouse.Pepper(step.pepper)
  const notAfter = step.not_after_ms === undefined ? undefined : step.not_after_ms === 0 ? null : new Date(step.not_after_ms)
  switch (step.op) {
    case 'put': return publisher.put(objectOf(step))
    case 'get': return publisher.get(step.key)
    case 'delete': return publisher.delete(step.key, { version })
    case 'purge': return publisher.purge({ ...step, virtualHost: step.virtual_host })
    case 'put_device':
      return publisher.putDevice(id, { ...step, pepper, notAfter, replace: !step.keep })
    case 'get_device': return publisher.getDevice(id)
    case 'rotate_device': return publisher.rotateDevice(id, secret ?? '', { overlap, cost, pepper, ifVersion: version })
    case 'set_device': {
      const { add, remove, labels, disabled, end_overlap: endOverlap } = step
      return publisher.setDevice(id, { add, remove, labels, notAfter, disabled, endOverlap, ifVersion: version })
    }
    case 'revoke_device': return publisher.revokeDevice(id, { force })
    case 'delete_device': return publisher.deleteDevice(id, { force })
    case 'invalidate_device': return publisher.invalidateDevice(id)
    case 'invalidate_label': return publisher.invalidateLabel(step.name, step.value)
    case 'invalidate_all': return publisher.invalidateAll()
  }
  throw new Error(`no operation ${step.op}`)
}

/** A hash as the vectors have it: itself if a step gives it, otherwise scheme and secret. */
async function described(hash, steps) {
  for (const step of steps) {
    const pepper = step.pepper && new gatehouse.Pepper(step.pepper)
    if (step.secret && !step.hashes?.includes(hash) && (await gatehouse.matches(hash, step.secret, pepper))) {
      const scheme = hash.startsWith('$2') ? `bcrypt ${Number(hash.slice(4, 6))}` : `gh1 ${hash.split('$')[2]}`
      return `${scheme} of ${step.secret}`
    }
  }
  return hash
}

async function cases(t, client, raw) {
  for (const { name, shards = 1, steps, records } of vectors.cases) {
    await t.test(name, async () => {
      const namespace = randomBytes(8).toString('hex')
      const prefix = (shard) => `{gatehouse.${namespace}:${shard}}:`
      const publisher = new gatehouse.Publisher(client, { namespace, shards })
      for (const step of steps) {
        if (step.op === 'evict') {
          const key = prefix(gatehouse.shardOf(step.member.slice(2), shards)) + step.member
          await raw(key, 'DEL', key)
        } else if (step.results) {
          const results = await (step.objects
            ? publisher.putMany(step.objects.map(objectOf))
            : publisher.deleteMany(step.keys))
          assert.deepEqual(results.map(outcome), step.results)
        } else {
          assert.deepEqual(outcome(await run(publisher, step).catch((error) => error)), step.want, JSON.stringify(step))
        }
      }
      const got = {}
      for (let shard = 0; shard < shards; shard++) {
        for (const member of await raw(prefix(shard) + 'log', 'ZRANGE', prefix(shard) + 'log', '0', '-1')) {
          const record = await raw(prefix(shard) + member, 'HGETALL', prefix(shard) + member)
          const pairs = Array.isArray(record) ? record.flatMap((_, i) => (i % 2 ? [] : [record.slice(i, i + 2)]))
            : Object.entries(record)
          if (pairs.length > 0) got[member] = Object.fromEntries(pairs.map(([field, value]) => [String(field), value]))
        }
      }
      assert.deepEqual(Object.keys(got).sort(), Object.keys(records).sort())
      for (const member in records) await check(got[member], records[member], steps)
    })
  }
}

/** Compares a record in Redis with the vectors'. */
async function check(record, wanted, steps) {
  const { codings = [], ...want } = wanted
  const { version, published, seq, ...got } = record
  const stored = Object.keys(got).filter((field) => field.startsWith('body.')).sort()
  assert.deepEqual(stored, codings.filter((name) => name !== 'body.zstd' || decoders['body.zstd']))
  for (const name of stored) {
    assert(decoders[name](got[name]).equals(got.body), name)
    delete got[name]
  }
  if (got.hash) got.hash = await Promise.all(got.hash.toString().split('\n').map((hash) => described(hash, steps)))
  if (got['old-until']) {
    const left = Number(got['old-until']) - Date.now()
    const overlap = want['old-until'].in_ms
    assert(overlap - 60_000 < left && left <= overlap, String(left))
    got['old-until'] = want['old-until']
  }
  for (const [name, value] of Object.entries(got)) {
    if (want[name]?.sha256) got[name] = { sha256: createHash('sha256').update(value).digest('hex') }
    else if (Buffer.isBuffer(value)) got[name] = value.toString()
  }
  assert.deepEqual({ ...got }, want)
}
