import { createHash, randomBytes } from 'node:crypto'
import { hostname, userInfo } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  ExistsError, FullError, GatehouseError, InvalidError, NotFoundError, ShardsError, StaleError,
} from './errors.js'
import { checkSecret, hashSecret, matches, type Pepper } from './hashes.js'
import { canonical, checkDeviceId, purgesOf, shardOf } from './keys.js'
import {
  checkVersion, labelsField, maxOwnVersion, objectFields, parseDevice, parseObject, permissionsField, stored, tagForm,
  unixMs, type Fields, type GatehouseObject, type Receipt, type Stored, type StoredDevice, type StoredObject,
} from './records.js'
import { script } from './script.js'

const sha1 = createHash('sha1').update(script).digest('hex')
const tombstoneLifeMs = 24 * 60 * 60 * 1000
const attempts = 10 // of a change whose record is written meanwhile
const mostRecords = 512 // at once
const mostBytes = 4 << 20
const moving = ['TRYAGAIN', 'ASK', 'MOVED', 'CLUSTERDOWN'] // a Cluster moves the slot, and executed nothing
const movingForMs = 5000

type Argument = string | Buffer
type Command = Argument[]
type Result = Receipt | Error

/** A client of node-redis: of one server, a pool, Sentinel or a Cluster. */
export interface RedisLike {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  sendCommand(...args: any[]): Promise<unknown>
}

export interface PublisherOptions {
  /** The number of shards, the same for all writers and sidecars; by default 1. */
  shards?: number
  /** The namespace, the same for all writers and sidecars; by default none. */
  namespace?: string
  /** Who writes, for the audit of devices; by default user@host. */
  author?: string
  /** The number of the database, if the client is a pool or one of Sentinel. Others tell it. */
  database?: number
}

export interface DeviceOptions {
  /** Its secret; or hashes that exist. */
  secret?: string
  hashes?: string[]
  permissions?: string[]
  labels?: Record<string, string>
  notAfter?: Date
  disabled?: boolean
  /** Your own version; by default the next one. */
  version?: number
  /** Of bcrypt; by default 12. */
  cost?: number
  /** Stores the secret, which must be generated, as gh1. */
  pepper?: Pepper
  /** false: another record is an ExistsError, and for an equal one nothing is written: the receipt's seq is 0. */
  replace?: boolean
}

export interface Rotation {
  /** Milliseconds for which the secret before stays valid; by default it ends at once. */
  overlap?: number
  ifVersion?: number
  cost?: number
  pepper?: Pepper
}

export interface DeviceChange {
  /** Permissions to add and to remove. */
  add?: string[]
  remove?: string[]
  /** Labels to set; null removes one. */
  labels?: Record<string, string | null>
  /** null: never. */
  notAfter?: Date | null
  /** false also ends a revocation. */
  disabled?: boolean
  /** The old secret ends at once. */
  endOverlap?: boolean
  ifVersion?: number
}

export interface Purge {
  /** One of tag, prefix (a path that ends with /) and all. */
  tag?: string
  prefix?: string
  all?: boolean
  /** Objects of this virtual host; by default those of none. */
  virtualHost?: string
  /** They count as expired. */
  soft?: boolean
}

interface Mutation {
  mode: 'replace' | 'merge' | 'add' | 'purge'
  member: string
  fields: Fields
  version?: string
}

/** The results of writes, and, if Redis answered none of a round trip, why: nothing more was sent. */
interface Written {
  results: Result[]
  gone: Error | undefined
}

/** The first word of an error of Redis. */
function code(reply: unknown): string {
  return reply instanceof Error ? (/^[A-Z]+(?= )/.exec(reply.message)?.[0] ?? '') : ''
}

/** This package's error for one of the script. */
function translate(error: Error): Error {
  const word = code(error)
  const text = error.message.slice(word.length + 1)
  switch (word) {
    case 'STALE': return new StaleError(text)
    case 'EXISTS': return new ExistsError(text)
    case 'INVALID': case 'LIMIT': return new InvalidError(text)
    case 'ABSENT': return new NotFoundError(`no such record: ${text}`)
    case 'OOM':
      return new FullError('redis is full (maxmemory): nothing was written; only deletions and revocations succeed')
  }
  return error
}

/** Whether a result is an answer of Redis. */
function answered(result: Result): boolean {
  return !(result instanceof Error) || result instanceof GatehouseError || code(result) !== ''
}

function defaultAuthor(): string {
  try {
    return `${userInfo().username}@${hostname()}`
  } catch { // no entry for the user's number
    return `?@${hostname()}`
  }
}

/** Writes to all shards. One publisher serves all of a program. */
export class Publisher {
  readonly #send: (key: string, command: Command) => Promise<unknown>
  readonly #shards: number
  readonly #name: string
  readonly #author: string
  readonly #channel: string
  readonly #publish: string
  #agreed = false

  /** The client is yours, and connected by you; so are its TLS and logins. */
  constructor(client: RedisLike, options: PublisherOptions = {}) {
    this.#shards = options.shards ?? 1
    if (!Number.isInteger(this.#shards) || this.#shards < 1 || this.#shards > 64) {
      throw new InvalidError(`shards: ${this.#shards} is out of 1 to 64`)
    }
    const namespace = options.namespace ?? ''
    if (namespace && !/^[a-z0-9][a-z0-9-]{0,31}$/.test(namespace)) {
      throw new InvalidError(`namespace ${namespace}: want 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit`)
    }
    this.#name = namespace ? `gatehouse.${namespace}` : 'gatehouse'
    this.#author = options.author ?? defaultAuthor()
    const cluster = 'masters' in client
    const own = (client as { options?: { database?: number } }).options
    const database = cluster ? 0 : (options.database ?? own?.database ?? 0)
    this.#channel = database ? `events:${database}` : 'events'
    this.#publish = cluster ? 'SPUBLISH' : 'PUBLISH'
    // Whatever the client's own mapping: RESP's $ are bytes, its : and , strings, since node-redis misreads 2^53 - 1.
    const raw = { typeMapping: { 36: Buffer, 58: String, 44: String } }
    if (cluster) this.#send = (key, command) => client.sendCommand(key, false, command, raw)
    else if ('getMasterNode' in client) this.#send = (_, command) => client.sendCommand(false, command, raw)
    else this.#send = (_, command) => client.sendCommand(command, raw)
  }

  #prefix(shard: number): string {
    return `{${this.#name}:${shard}}:`
  }

  #recordKey(member: string): string {
    return this.#prefix(shardOf(member.slice(2), this.#shards)) + member
  }

  /** Sends commands at once; node-redis pipelines them. */
  async #all(commands: [key: string, command: Command][]): Promise<unknown[]> {
    return Promise.all(commands.map(([key, command]) => this.#send(key, command)))
  }

  async #one(key: string, ...command: Command): Promise<unknown> {
    try {
      return await this.#send(key, command)
    } catch (error) {
      throw translate(error as Error)
    }
  }

  // Runs of the script.

  async #storedShards(): Promise<number | undefined> {
    const key = this.#prefix(0) + 'shards'
    const number = await this.#one(key, 'GET', key)
    if (number === null || number === undefined) return undefined
    if (Number(String(number)) !== this.#shards) {
      throw new ShardsError(`${key} is ${number}, this program is set to ${this.#shards} (shards)`)
    }
    return this.#shards
  }

  /** Compares the number of shards with the one in Redis, and stores it there if there is none. */
  async #agree(): Promise<void> {
    if (this.#agreed) return
    if ((await this.#storedShards()) === undefined) { // only then: a Redis that is full refuses SET, also with NX
      const key = this.#prefix(0) + 'shards'
      await this.#one(key, 'SET', key, String(this.#shards), 'NX')
      await this.#storedShards()
    }
    this.#agreed = true
  }

  /** The arguments of a run, after the script. */
  #call(m: Mutation, shard: number, audited: boolean): Command {
    const prefix = this.#prefix(shard)
    const keys = [m.member, 'seq', 'log', 'epoch', 'chain', ...(audited ? ['audit'] : [])].map((name) => prefix + name)
    const expiry = m.fields.deleted ? tombstoneLifeMs : 0
    return [
      String(keys.length), ...keys, m.mode, m.version ?? '0', randomBytes(16).toString('hex'), m.member,
      String(expiry), prefix + this.#channel, this.#publish, '', ...(audited ? [this.#author] : []),
      ...Object.entries(m.fields).flat(),
    ]
  }

  /** Runs the script for each call. A reply that is an error means that nothing was written. */
  async #run(calls: Command[]): Promise<unknown[]> {
    const replies: unknown[] = []
    const evaluate = async (command: string, source: string, these: number[]) => {
      const sent = these.map((i) => this.#send(String(calls[i]![1]), [command, source, ...calls[i]!]))
      ;(await Promise.allSettled(sent)).forEach((settled, n) => {
        replies[these[n]!] = settled.status === 'fulfilled' ? settled.value : settled.reason
      })
    }
    let pending = calls.map((_, i) => i)
    for (let begin = Date.now(), pause = 5; ; ) {
      await evaluate('EVALSHA', sha1, pending)
      // The script itself, once for each shard whose server doesn't know it.
      const unknown = new Map<string, number>()
      for (const i of [...pending].reverse()) {
        if (code(replies[i]) === 'NOSCRIPT') unknown.set(String(calls[i]![1]).split('}')[0]!, i)
      }
      await evaluate('EVAL', script, [...unknown.values()])
      pending = pending.filter((i) => [...moving, 'NOSCRIPT'].includes(code(replies[i])))
      if (pending.length === 0 || Date.now() - begin > movingForMs) return replies
      if (unknown.size === 0) {
        await sleep(pause)
        pause = Math.min(2 * pause, 200)
      }
    }
  }

  /** Runs the script for each mutation, each atomic by itself, many in one round trip. */
  async #writeAll(mutations: Mutation[], shard?: (n: number) => number): Promise<Written> {
    const results: Result[] = []
    let gone: Error | undefined
    while (results.length < mutations.length && !gone) {
      const part: [Mutation, number][] = []
      let size = 0
      for (let n = results.length; n < mutations.length && part.length < mostRecords; n++) {
        const m = mutations[n]!
        size += Object.values(m.fields).reduce((sum, value) => sum + value.length, 0)
        if (part.length > 0 && size > mostBytes) break
        part.push([m, shard?.(n) ?? shardOf(m.member.slice(2), this.#shards)])
      }
      try {
        await this.#agree()
        const written = await this.#writePart(part)
        results.push(...written)
        if (!written.some(answered)) gone = written[0] as Error
      } catch (error) {
        gone = error as Error
      }
    }
    while (results.length < mutations.length) results.push(gone!)
    return { results, gone }
  }

  async #writePart(part: [Mutation, number][]): Promise<Result[]> {
    const device = part.map(([m]) => m.member.startsWith('c:'))
    const replies = await this.#run(part.map(([m, shard], i) => this.#call(m, shard, device[i]!)))
    // Perhaps only the audit's key isn't permitted or, in a slot that moves, isn't there: a revocation must not need it.
    const again = part.map((_, i) => i).filter((i) => device[i] && [...moving, 'NOPERM'].includes(code(replies[i])))
    if (again.length > 0) {
      const unaudited = await this.#run(again.map((i) => this.#call(...part[i]!, false)))
      again.forEach((i, n) => (replies[i] = unaudited[n]))
    }
    return replies.map((reply) => {
      if (reply instanceof Error) return translate(reply)
      const [version, seq] = (reply as (number | Buffer)[]).map((n) => Number(String(n))) as [number, number]
      if (seq === 1) this.#agreed = false // the shard was empty: Redis may have lost its data, and the number of shards
      return { version, seq }
    })
  }

  async #write(m: Mutation): Promise<Receipt> {
    return only((await this.#writeAll([m])).results)
  }

  // Objects.

  /** Publishes an object, with the encodings that are smaller than its body. */
  async put(object: GatehouseObject): Promise<Receipt> {
    return only(await this.putMany([object]))
  }

  /**
   * Publishes objects, some hundreds in one round trip. Each is written by itself, or its result is the error. Once
   * Redis answers no write of a round trip, nothing more is sent, and the rest has its error.
   */
  async putMany(objects: GatehouseObject[]): Promise<Result[]> {
    const results: Result[] = []
    let gone: Error | undefined
    for (let from = 0; from < objects.length && !gone; from += mostRecords) {
      const part = objects.slice(from, from + mostRecords)
      const written = Array<Result | undefined>(part.length).fill(undefined)
      try {
        gone = await this.#putPart(part, written)
      } catch (error) { // it couldn't read whether objects are absent
        gone = error as Error
      }
      results.push(...written.map((result) => result ?? gone!))
    }
    while (results.length < objects.length) results.push(gone!)
    return results
  }

  /** Publishes objects. It returns why nothing more should be sent, if Redis does not answer. */
  async #putPart(objects: GatehouseObject[], results: (Result | undefined)[]): Promise<Error | undefined> {
    const prepared = await Promise.allSettled(objects.map(objectFields))
    const mutations = new Map<number, Mutation>()
    prepared.forEach((settled, i) => {
      if (settled.status === 'rejected') {
        results[i] = settled.reason as Error
        return
      }
      const { key, version, ifVersion } = objects[i]!
      const text = ifVersion === undefined ? String(version ?? 0) : `=${ifVersion}`
      mutations.set(i, { mode: 'replace', member: `o:${canonical(key)}`, fields: settled.value, version: text })
    })
    const write = async (these: number[]) => {
      const written = await this.#writeAll(these.map((i) => mutations.get(i)!))
      these.forEach((i, n) => (results[i] = written.results[n]!))
      return written.gone
    }
    let gone = await write([...mutations.keys()].filter((i) => !objects[i]!.ifAbsent))
    let absent = [...mutations.keys()].filter((i) => objects[i]!.ifAbsent)
    for (let attempt = 0; attempt < attempts && absent.length > 0 && !gone; attempt++) {
      for (const i of absent) results[i] = undefined
      const states = await this.#live(absent.map((i) => mutations.get(i)!.member))
      const free = absent.filter((i, n) => {
        const { live, version } = states[n]!
        if (live) results[i] = new ExistsError(`${mutations.get(i)!.member.slice(2)} has version ${version}`)
        else mutations.get(i)!.version = `=${version}`
        return !live
      })
      gone = await write(free)
      absent = free.filter((i) => results[i] instanceof StaleError)
    }
    return gone
  }

  /** Whether there is an object that is neither deleted nor purged, and its version, 0 for none. */
  async #live(members: string[]): Promise<{ live: boolean; version: number }[]> {
    await this.#storedShards()
    return Promise.all(members.map(async (m) => {
      const key = this.#recordKey(m)
      const [version, deleted, tags, seq] = (await this.#all(
        ['version', 'deleted', 'tags', 'seq'].map((name) => [key, ['HGET', key, name]])
      )) as (Buffer | null)[]
      const live = !!version && !deleted && !(await this.#purged(m.slice(2), tags, seq)).hard
      return { live, version: Number(version?.toString() ?? 0) }
    }))
  }

  /** Whether a hard, and a soft purge reach an object. */
  async #purged(key: string, tags?: Buffer | null, seq?: Buffer | null): Promise<{ hard: boolean; soft: boolean }> {
    const prefix = this.#prefix(shardOf(key, this.#shards))
    const ids = purgesOf(key, tags?.length ? tags.toString().split(',') : [])
    const reached = async (kind: string) => {
      const purges = await this.#all(ids.map((id) => [`${prefix}p:${id}`, ['HGET', `${prefix}p:${id}`, kind]]))
      return purges.some((at) => !!at && Number(String(at)) >= Number(seq?.toString() ?? 0))
    }
    const [hard, soft] = await Promise.all([reached('hard'), reached('soft')])
    return { hard, soft }
  }

  /** The object as Redis has it. */
  async get(key: string): Promise<StoredObject> {
    key = canonical(key)
    const at = this.#recordKey(`o:${key}`)
    const record = stored(await this.#one(at, 'HGETALL', at))
    if (Object.keys(record).length === 0) await this.#storedShards()
    if (record.version && !record.deleted) {
      const { hard, soft } = await this.#purged(key, record.tags, record.seq)
      if (!hard) return parseObject(key, record, soft)
    }
    throw new NotFoundError(`no object ${key}`)
  }

  /** Makes the edges forget an object. A key that has none is no error: late puts with older versions fail. */
  async delete(key: string, options: { version?: number } = {}): Promise<Receipt> {
    checkVersion(options.version ?? 0)
    return this.#write({
      mode: 'replace', member: `o:${canonical(key)}`, fields: { deleted: '1' }, version: String(options.version ?? 0),
    })
  }

  /** Deletes objects, as putMany publishes. */
  async deleteMany(keys: string[]): Promise<Result[]> {
    const results: Result[] = []
    const good: number[] = []
    const mutations: Mutation[] = []
    keys.forEach((key, i) => {
      try {
        mutations.push({ mode: 'replace', member: `o:${canonical(key)}`, fields: { deleted: '1' } })
        good.push(i)
      } catch (error) {
        results[i] = error as Error
      }
    })
    const written = await this.#writeAll(mutations)
    good.forEach((i, n) => (results[i] = written.results[n]!))
    return results
  }

  /**
   * Removes all objects with a tag, below a path, or all: those of a virtual host, or those of none. What is published
   * afterwards stays. After an error, repeat it.
   */
  async purge({ tag, prefix, all, virtualHost, soft }: Purge): Promise<void> {
    if ([tag, prefix, all].filter(Boolean).length !== 1) {
      throw new InvalidError('purge: give one of tag, prefix and all')
    }
    if (tag && !tagForm.test(tag)) {
      throw new InvalidError(`tag ${tag.slice(0, 65)}: want 1 to 64 of a URI's characters other than , and *`)
    }
    if (prefix && !prefix.endsWith('/')) throw new InvalidError(`prefix ${prefix}: want a path that ends with /`)
    const id = (virtualHost ? `//${virtualHost}` : '') + (tag ? `#${tag}` : (prefix ?? '/'))
    if (!tag) canonical(id)
    const m: Mutation = { mode: 'purge', member: `p:${id}`, fields: { [soft ? 'soft' : 'hard']: '1' } }
    const { results } = await this.#writeAll(Array<Mutation>(this.#shards).fill(m), (n) => n)
    for (const result of results) if (result instanceof Error) throw result
  }

  // Devices.

  /** Registers a device, or replaces its record, even a revoked one. */
  async putDevice(id: string, options: DeviceOptions): Promise<Receipt> {
    const { secret, hashes = [], notAfter, disabled, version = 0 } = options
    checkDeviceId(id)
    checkVersion(version)
    if (id.startsWith('*')) throw new InvalidError(`device ${id}: ids that begin with * are for invalidations`)
    if (secret !== undefined ? hashes.length > 0 : hashes.length === 0 && !disabled) {
      throw new InvalidError(`device ${id}: give a secret, or hashes`)
    }
    const fields: Fields = {
      ...(disabled ? { disabled: '1' } : {}),
      ...permissionsField(id, options.permissions ?? []),
      ...labelsField(id, options.labels ?? {}),
      ...(notAfter ? { 'not-after': unixMs(`notAfter of ${id}`, notAfter) } : {}),
    }
    if (secret !== undefined) {
      checkSecret(id, secret)
      fields.hash = await hashSecret(secret, options)
    } else if (hashes.length > 0) {
      fields.hash = hashes.join('\n')
    }
    const mode = options.replace === false ? 'add' : 'replace'
    return this.#write({ mode, member: `c:${id}`, fields, version: String(version) })
  }

  async #deviceRecord(id: string): Promise<Stored> {
    checkDeviceId(id)
    const key = this.#recordKey(`c:${id}`)
    const record = stored(await this.#one(key, 'HGETALL', key))
    if (Object.keys(record).length === 0) await this.#storedShards()
    if (Object.keys(record).length === 0 || record.deleted) throw new NotFoundError(`no device ${id}`)
    return record
  }

  /** The device as Redis has it. */
  async getDevice(id: string): Promise<StoredDevice> {
    return parseDevice(id, await this.#deviceRecord(id))
  }

  /** Writes what change makes of the record, again if it was written meanwhile; nothing if that is undefined. */
  async #change(
    id: string, ifVersion: number | undefined, change: (record: Fields, device: StoredDevice) => Fields | undefined
  ): Promise<Receipt> {
    for (let attempt = 1; ; attempt++) {
      const record = await this.#deviceRecord(id)
      const device = parseDevice(id, record)
      const { published, version, seq, ...rest } = record
      if (ifVersion !== undefined && device.version !== ifVersion) {
        throw new StaleError(`device ${id} has version ${device.version}, want ${ifVersion}`)
      }
      const fields = change(rest, device)
      if (!fields) return { version: device.version, seq: 0 }
      try { // stale if the record was written meanwhile, or Redis has lost it
        return await this.#write({ mode: 'replace', member: `c:${id}`, fields, version: `=${device.version}` })
      } catch (error) {
        if (!(error instanceof StaleError) || ifVersion !== undefined || attempt === attempts) throw error
      }
    }
  }

  /** Gives a device a new secret. */
  async rotateDevice(id: string, secret: string, options: Rotation = {}): Promise<Receipt> {
    const { overlap, ifVersion, pepper } = options
    checkDeviceId(id)
    checkSecret(id, secret)
    if (overlap !== undefined && !(overlap >= 1)) {
      throw new InvalidError(`overlap ${overlap} of ${id}: want a millisecond at least, or none`)
    }
    const hash = await hashSecret(secret, options)
    const before = (await this.getDevice(id)).hashes[0]
    if (before !== undefined && (await matches(before, secret, pepper))) {
      throw new InvalidError(`secret of ${id}: is the current one`)
    }
    return this.#change(id, ifVersion, ({ 'old-until': _, ...record }, device) => {
      const current = device.hashes[0]
      if (current === hash) return undefined // an attempt before was applied, and its reply lost
      if (overlap === undefined || current === undefined) return { ...record, hash }
      const end = new Date(Date.now() + Math.floor(overlap))
      return { ...record, hash: `${hash}\n${current}`, 'old-until': unixMs('end of the overlap', end) }
    })
  }

  /** Changes a device, and keeps the rest of its record, also the secret. */
  async setDevice(id: string, change: DeviceChange): Promise<Receipt> {
    return this.#change(id, change.ifVersion, ({ permissions: _, labels: __, ...fields }, device) => {
      const names = [...device.permissions, ...(change.add ?? [])].filter((name) => !change.remove?.includes(name))
      const labels = Object.entries({ ...device.labels, ...change.labels }).filter(([, value]) => value !== null)
      Object.assign(fields, permissionsField(id, names), labelsField(id, Object.fromEntries(labels) as Record<string, string>))
      if (change.notAfter) fields['not-after'] = unixMs(`notAfter of ${id}`, change.notAfter)
      else if (change.notAfter === null) delete fields['not-after']
      if (change.disabled) fields.disabled ??= '1'
      else if (change.disabled === false) delete fields.disabled
      if (change.endOverlap && device.hashes[0] !== undefined) {
        fields.hash = device.hashes[0]
        delete fields['old-until']
      }
      return fields
    })
  }

  async #state(member: string) {
    const prefix = this.#prefix(shardOf(member.slice(2), this.#shards))
    const [score, version, deleted] = await this.#all([
      [`${prefix}log`, ['ZSCORE', `${prefix}log`, member]],
      [prefix + member, ['HGET', prefix + member, 'version']],
      [prefix + member, ['HGET', prefix + member, 'deleted']],
    ])
    return {
      there: !!version && !deleted, // it has a record other than a tombstone
      deleted: !!deleted,
      logged: score !== null,
      version: Number(String(version ?? 0)),
    }
  }

  /** Refuses a device from now on. With `force` also one that Redis doesn't have, which edges may still know. */
  async revokeDevice(id: string, options: { force?: boolean } = {}): Promise<Receipt> {
    return this.#withdraw(id, { disabled: 'revoked' }, options.force)
  }

  /** Sets fields of a device's record, or writes a tombstone if there is none. */
  async #withdraw(id: string, fields: Fields, force?: boolean): Promise<Receipt> {
    checkDeviceId(id)
    const member = `c:${id}`
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#write({ mode: 'merge', member, fields })
      } catch (error) {
        if (!(error instanceof NotFoundError)) throw error
      }
      // Edges may have the device although its record is gone: a tombstone above the highest version that a writer can
      // have given, and above those counted after an earlier tombstone of this kind.
      const state = await this.#state(member)
      if (!state.there && !force && (state.deleted || !state.logged)) throw new NotFoundError(`no device ${id}`)
      const above = maxOwnVersion + 1000 * Date.now()
      const version = String(state.version < above ? above : 0)
      try {
        return await this.#write({ mode: 'add', member, fields: { deleted: '1' }, version })
      } catch (error) {
        if (!(error instanceof StaleError || error instanceof ExistsError)) throw error
        if (attempt === attempts) throw new StaleError(`device ${id} is written all the time`)
      }
    }
  }

  /** Makes the edges forget a device. */
  async deleteDevice(id: string, options: { force?: boolean } = {}): Promise<Receipt> {
    return this.#withdraw(id, { deleted: '1' }, options.force)
  }

  /** Writes a tombstone where there is no record. */
  async #invalidate(id: string): Promise<Receipt> {
    checkDeviceId(id)
    const member = `c:${id}`
    for (let attempt = 1; ; attempt++) {
      const state = await this.#state(member)
      if (state.there) {
        throw new InvalidError(`device ${id} has a record, which decides about it: revoke or delete it`)
      }
      try { // stale if a record was written meanwhile
        return await this.#write({ mode: 'replace', member, fields: { deleted: '1' }, version: `=${state.version}` })
      } catch (error) {
        if (!(error instanceof StaleError) || attempt === attempts) throw error
      }
    }
  }

  /** Ends the verdicts of an authority on a device: it is asked again at the next request. */
  async invalidateDevice(id: string): Promise<Receipt> {
    if (id.startsWith('*')) throw new InvalidError(`device ${id}: ids that begin with * are for invalidations`)
    return this.#invalidate(id)
  }

  /** invalidateDevice for all devices to which the authority gave a label. */
  async invalidateLabel(name: string, value: string): Promise<Receipt> {
    labelsField('*', { [name]: value })
    return this.#invalidate(`*${name}=${value}`)
  }

  /** invalidateDevice for all devices without a record. */
  async invalidateAll(): Promise<Receipt> {
    return this.#invalidate('*')
  }
}

function only(results: Result[]): Receipt {
  const [result] = results
  if (result instanceof Error) throw result
  return result!
}
