// Objects and devices, and their records in Redis: docs/redis-contract.md, section Records.
import { createHash } from 'node:crypto'
import { promisify } from 'node:util'
import zlib from 'node:zlib'
import { CorruptError, InvalidError } from './errors.js'
import { canonical } from './keys.js'

export const maxVersion = Number.MAX_SAFE_INTEGER
/** The highest version that a writer gives itself. */
export const maxOwnVersion = 2 ** 52
const lastMs = 8.64e15 // the end of Date
const maxBody = 1 << 20
const nameForm = /^[A-Za-z0-9._:-]{1,64}$/
export const tagForm = /^[A-Za-z0-9._~:/?#[\]@!$&'()+;=%-]{1,64}$/
const labelForm = /^[a-z0-9._-]{1,32}=[A-Za-z0-9._:-]{0,64}$/
const compressed =
  /^((image|video|audio)\/.*|font\/woff2?|application\/(zip|gzip|x-gzip|zstd|x-7z-compressed|x-bzip2|x-xz|vnd[.]rar))$/
const uncompressed = /^(image\/(svg[+]xml|bmp|x-ms-bmp|x-icon|vnd[.]microsoft[.]icon|tiff)|audio\/wave?)$/

export type Fields = Record<string, string | Buffer>

/** A recorded write: the new version of the record, and the write's sequence number in its shard. */
export interface Receipt {
  version: number
  seq: number
}

/** An answer that the edges serve for a key. */
export interface GatehouseObject {
  key: string
  body: string | Uint8Array
  contentType: string
  /** Milliseconds until it isn't served any more; by default until it changes. */
  ttl?: number
  /** 200 (default), 301, 302, 307, 308, 404 or 410. */
  status?: number
  /** Response headers besides Content-Type. */
  headers?: Record<string, string> | [name: string, value: string][]
  /** What `purge` can name. */
  tags?: string[]
  /** A strong entity-tag with its quotes; by default one of all that a 304 doesn't repeat. */
  etag?: string
  /** Your own version, which must exceed every earlier one of the key; by default the next one. */
  version?: number
  /** Write only if the stored record has this version. */
  ifVersion?: number
  /** Write only if there is no object. */
  ifAbsent?: boolean
}

/** An object as Redis has it. */
export interface StoredObject {
  key: string
  body: Buffer
  contentType: string
  version: number
  published: Date
  etag: string
  ttl?: number
  status: number
  headers: [name: string, value: string][]
  tags: string[]
  /** The body by content coding: gzip, br, zstd. */
  encodings: Record<string, Buffer>
  /** A soft purge reaches it: it counts as expired. */
  stale: boolean
}

/** A device as Redis has it. */
export interface StoredDevice {
  id: string
  version: number
  published: Date
  /** It is refused with any credential. */
  disabled: boolean
  /** A revocation disabled it. */
  revoked: boolean
  permissions: string[]
  labels: Record<string, string>
  notAfter?: Date
  /** Until when secrets before the newest count; undefined: for ever. */
  oldUntil?: Date
  hashes: string[]
}

/** The default entity-tag. `headers` are lines as the record has them. */
function defaultEtag(contentType: string, body: Buffer, status: number, headers: string): string {
  const plain = status === 200 && headers === ''
  const head = plain ? `${contentType}\n` : `${contentType}\0${status}\n${headers}\n`
  return `"${createHash('sha256').update(head).update(body).digest('hex').slice(0, 32)}"`
}

/** The record of an object. What write.lua checks isn't checked here. */
export async function objectFields(o: GatehouseObject): Promise<Fields> {
  const key = canonical(o.key)
  const body = Buffer.from(o.body as Uint8Array)
  if (body.length > maxBody) {
    throw new InvalidError(`body of ${key}: ${body.length} bytes, at most ${maxBody} are allowed`)
  }
  checkVersion(o.version ?? 0)
  checkVersion(o.ifVersion ?? 0)
  if (Number(!!o.version) + Number(o.ifVersion !== undefined) + Number(!!o.ifAbsent) > 1) {
    throw new InvalidError(`${key}: give one of version, ifVersion and ifAbsent`)
  }
  const pairs = Array.isArray(o.headers) ? o.headers : Object.entries(o.headers ?? {})
  for (const [name, value] of pairs) {
    if (/[\n:]/.test(name) || value.includes('\n')) {
      throw new InvalidError(`header ${name.slice(0, 64)} of ${key}: has a line end, or a colon in its name`)
    }
  }
  const status = o.status ?? 200
  const headers = pairs.map(([name, value]) => `${name.toLowerCase()}: ${value}`).join('\n')
  if (typeof o.tags === 'string') throw new InvalidError(`tags ${o.tags} of ${key}: want an array`)
  if (typeof o.contentType !== 'string') throw new InvalidError(`contentType of ${key}: want a string`)
  for (const tag of o.tags ?? []) {
    if (!tagForm.test(tag)) {
      throw new InvalidError(`tag ${tag.slice(0, 65)} of ${key}: want 1 to 64 of a URI's characters other than , and *`)
    }
  }
  const fields: Fields = {
    etag: o.etag || defaultEtag(o.contentType, body, status, headers),
    'content-type': o.contentType,
    body,
  }
  if (o.ttl !== undefined) {
    if (!Number.isSafeInteger(o.ttl) || o.ttl < 1) {
      throw new InvalidError(`ttl ${o.ttl} of ${key}: want whole milliseconds, 1 at least`)
    }
    fields.ttl = String(o.ttl)
  }
  if (status !== 200) fields.status = String(status)
  if (headers) fields.headers = headers
  if (o.tags?.length) fields.tags = distinct(o.tags).join(',')
  return { ...fields, ...(await encode(body, o.contentType)) }
}

export function distinct(names: Iterable<string>): string[] {
  return [...new Set(names)].sort()
}

export function checkVersion(version: number): void {
  if (!Number.isSafeInteger(version) || version < 0) {
    throw new InvalidError(`version ${version}: is out of 0 to ${maxVersion}`)
  }
}

type Coder = (body: Buffer) => Promise<Buffer>
const { BROTLI_PARAM_QUALITY, BROTLI_PARAM_SIZE_HINT } = zlib.constants
const brotli = promisify<Buffer, zlib.BrotliOptions, Buffer>(zlib.brotliCompress)
const coders: Record<string, Coder> = {
  'body.gzip': ((gzip) => (body) => gzip(body, { level: 9 }))(
    promisify<Buffer, zlib.ZlibOptions, Buffer>(zlib.gzip)
  ),
  'body.br': (body) =>
    brotli(body, { params: { [BROTLI_PARAM_QUALITY]: 9, [BROTLI_PARAM_SIZE_HINT]: body.length } }),
}
if ('zstdCompress' in zlib) {
  // From Node 22.15 and 23.8. The window is far below the 8 MiB that RFC 9659 allows.
  const zstd = promisify(zlib.zstdCompress as (body: Buffer, options: object, done: (e: Error | null, r: Buffer) => void) => void)
  const { ZSTD_c_compressionLevel: level, ZSTD_c_windowLog: window } = zlib.constants as unknown as Record<string, number>
  coders['body.zstd'] = (body) => zstd(body, { params: { [level!]: 19, [window!]: 20 } })
}

/** The fields of all encodings that are smaller than the body. */
async function encode(body: Buffer, contentType: string): Promise<Fields> {
  const media = (contentType.split(';')[0] ?? '').trim().toLowerCase()
  if (compressed.test(media) && !uncompressed.test(media)) return {}
  const encoded = await Promise.all(
    Object.entries(coders).map(async ([name, code]) => [name, await code(body)] as const)
  )
  return Object.fromEntries(encoded.filter(([, data]) => data.length < body.length))
}

export function unixMs(what: string, time: Date): string {
  const ms = time.getTime()
  if (!(ms >= 1)) throw new InvalidError(`${what}: want a time after 1970`)
  return String(ms)
}

export function permissionsField(id: string, names: string[]): Fields {
  for (const name of names) {
    if (!nameForm.test(name)) {
      throw new InvalidError(`permission ${name.slice(0, 65)} of ${id}: want 1 to 64 of letters, digits and . _ : -`)
    }
  }
  const all = distinct(names)
  if (all.length > 64) throw new InvalidError(`permissions of ${id}: ${all.length} names, at most 64 are allowed`)
  return all.length ? { permissions: all.join(',') } : {}
}

export function labelsField(id: string, labels: Record<string, string>): Fields {
  const pairs = Object.keys(labels).sort().map((name) => `${name}=${labels[name]}`)
  for (const pair of pairs) {
    if (!labelForm.test(pair)) {
      throw new InvalidError(
        `label ${pair.slice(0, 100)} of ${id}: want a name of 1 to 32 of a-z, 0-9 and . _ -, and a value of at most 64 ` +
          'letters, digits and . _ : -'
      )
    }
  }
  return pairs.length ? { labels: pairs.join(',') } : {}
}

export type Stored = Record<string, Buffer>

/** The reply of HGETALL: a list of names and values, or a map. */
export function stored(reply: unknown): Stored {
  const pairs: [unknown, Buffer][] = []
  if (Array.isArray(reply)) for (let i = 0; i < reply.length; i += 2) pairs.push([reply[i], reply[i + 1]])
  else if (reply instanceof Map) pairs.push(...reply)
  else pairs.push(...(Object.entries(reply ?? {}) as [string, Buffer][]))
  return Object.fromEntries(pairs.map(([name, value]) => [String(name), value]))
}

function splitOf(value: Buffer | undefined, separator: string): string[] {
  return value?.length ? value.toString().split(separator) : []
}

function pairOf(text: string, separator: string): [string, string] {
  const at = text.indexOf(separator)
  return [text.slice(0, at), text.slice(at + separator.length)]
}

function dateOf(ms: number): Date {
  return new Date(Math.min(ms, lastMs))
}

/** Reads the fields of a record that every one has. */
function reader(what: string, record: Stored) {
  const need = (name: string) => {
    const value = record[name]
    if (value === undefined) throw new CorruptError(`record of ${what}: ${name} is missing`)
    return value
  }
  const count = (name: string) => {
    const n = Number(need(name).toString())
    if (!Number.isSafeInteger(n)) throw new CorruptError(`record of ${what}: ${name} is no number`)
    return n
  }
  return { need, count, maybe: (name: string) => (record[name] === undefined ? undefined : count(name)) }
}

export function parseObject(key: string, record: Stored, stale: boolean): StoredObject {
  const { need, count, maybe } = reader(key, record)
  const ttl = maybe('ttl')
  return {
    key,
    body: need('body'),
    contentType: need('content-type').toString(),
    version: count('version'),
    published: dateOf(count('published')),
    etag: need('etag').toString(),
    ...(ttl === undefined ? {} : { ttl }),
    status: maybe('status') ?? 200,
    headers: splitOf(record.headers, '\n').map((line) => pairOf(line, ': ')),
    tags: splitOf(record.tags, ','),
    encodings: Object.fromEntries(
      Object.entries(record).filter(([name]) => name.startsWith('body.')).map(([name, data]) => [name.slice(5), data])
    ),
    stale,
  }
}

export function parseDevice(id: string, record: Stored): StoredDevice {
  const { count, maybe } = reader(`device ${id}`, record)
  const notAfter = maybe('not-after')
  const oldUntil = maybe('old-until')
  return {
    id,
    version: count('version'),
    published: dateOf(count('published')),
    disabled: record.disabled !== undefined,
    revoked: record.disabled?.toString() === 'revoked',
    permissions: splitOf(record.permissions, ','),
    labels: Object.fromEntries(splitOf(record.labels, ',').map((pair) => pairOf(pair, '='))),
    ...(notAfter === undefined ? {} : { notAfter: dateOf(notAfter) }),
    ...(oldUntil === undefined ? {} : { oldUntil: dateOf(oldUntil) }),
    hashes: splitOf(record.hash, '\n'),
  }
}
