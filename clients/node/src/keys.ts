// Keys of objects: docs/redis-contract.md, section Keys.
import { InvalidError } from './errors.js'

const maxKey = 2048
const maxPairs = 64
const deviceForm = '[!#-+.0->@-~-]{1,128}'
const hostForm = '[a-z0-9._-]{1,253}|\\[[0-9a-f:.]{1,251}\\]'
const keyForm = new RegExp(
  `^(@${deviceForm})?(//([a-z0-9_-]{1,64}|[a-z0-9_-]{0,64}:(${hostForm}))/|/(?!/))[!"$-~]*(#[a-z]{2,8}(-[a-z0-9]{1,8})*)?$`
)
const idForm = new RegExp(`^${deviceForm}$`)

/**
 * The key of the object at path for requests of a virtual host or, under a rule with scope `host`, for those with this
 * host. The name is '' for rules outside virtual hosts, the host for rules without that scope.
 */
export function keyOfVirtualHost(name: string, host: string, path: string): string {
  return host ? `//${name}:${host.toLowerCase()}${path}` : `//${name}${path}`
}

/** The key of the object that only this device gets. */
export function keyOfDevice(device: string, key: string): string {
  return `@${device}${key}`
}

/** The key of the object for key in a language. */
export function keyOfLanguage(key: string, language: string): string {
  return `${key}#${language.toLowerCase()}`
}

/** CRC-32 (IEEE). Older releases of Node 20 have none. */
export function crc32(text: string): number {
  let crc = 0xffffffff
  for (const byte of Buffer.from(text)) {
    crc ^= byte
    for (let i = 0; i < 8; i++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0)
  }
  return ~crc >>> 0
}

/** The shard of a key or device id. */
export function shardOf(id: string, shards: number): number {
  return crc32(id) % shards
}

/** What precedes the path of a key: device, virtual host and host; and the path with its query. */
function split(key: string): [space: string, target: string] {
  const space = /^(@[^/]*)?(\/\/[^/]*(?=\/))?/.exec(key)?.[0] ?? ''
  return [space, key.slice(space.length)]
}

/**
 * The stored form of a key: host and language in lower case, the hex digits of escapes in upper case. Throws
 * InvalidError for a key that no edge looks up.
 */
export function canonical(key: string): string {
  let [space, target] = split(key)
  const slashes = space.indexOf('//')
  const colon = slashes < 0 ? -1 : space.indexOf(':', slashes)
  if (colon >= 0) space = space.slice(0, colon) + space.slice(colon).toLowerCase()
  const mark = target.indexOf('#')
  const language = mark < 0 ? '' : target.slice(mark).toLowerCase()
  if (mark >= 0) target = target.slice(0, mark)
  target = target.replace(/%[0-9A-Fa-f]{2}/g, (escape) => escape.toUpperCase())
  const stored = space + target + language
  if (stored.length > maxKey) {
    throw new InvalidError(`key ${stored.slice(0, 64)}…: ${stored.length} bytes, at most ${maxKey} are allowed`)
  }
  if (!keyForm.test(stored)) {
    throw new InvalidError(`key ${key}: want visible ASCII, [@device][//[virtual-host][:host]]/path[#language]`)
  }
  const query = target.indexOf('?')
  if (query >= 0 && target.slice(query).split('&').length > maxPairs) {
    throw new InvalidError(`key ${key}: more than ${maxPairs} parameters`)
  }
  const want = lookedUp(target)
  if (target !== want) throw new InvalidError(`key ${key}: no edge looks it up, want ${space}${want}${language}`)
  return stored
}

/**
 * The target that the edge looks up for a request with this one: the proxy has normalised its path, and the edge has
 * sorted its query by name, without empty pairs.
 */
function lookedUp(target: string): string {
  const mark = target.indexOf('?')
  const query = mark < 0 ? '' : target.slice(mark + 1)
  const segments = (mark < 0 ? target : target.slice(0, mark))
    .replace(/%[0-9A-F]{2}/g, (escape) => {
      const char = String.fromCharCode(parseInt(escape.slice(1), 16))
      return /[A-Za-z0-9._~-]/.test(char) ? char : escape
    })
    .replace(/%2F|%5C|\\/g, '/')
    .split('/')
  const parts: string[] = []
  for (const segment of segments) {
    if (segment === '..') parts.pop()
    else if (segment !== '' && segment !== '.') parts.push(segment)
  }
  if (parts.length > 0 && ['', '.', '..'].includes(segments.at(-1) ?? '')) parts.push('')
  const name = (pair: string) => pair.split('=', 1)[0] ?? ''
  const pairs = query.split('&').filter((pair) => pair !== '')
  pairs.sort((a, b) => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : 0))
  return '/' + parts.join('/') + (pairs.length > 0 ? '?' + pairs.join('&') : '')
}

export function checkDeviceId(id: string): void {
  if (!idForm.test(id)) {
    throw new InvalidError(`device id ${id.slice(0, 130)}: want 1 to 128 bytes of visible ASCII without / ? , and "`)
  }
}

/** The ids of all purges that reach an object. */
export function purgesOf(key: string, tags: string[]): string[] {
  const [space, target] = split(key)
  const name = (space.split('//')[1] ?? '').split(':')[0]
  const before = name ? `//${name}` : ''
  const path = target.split('#')[0]?.split('?')[0] ?? ''
  const ids = tags.map((tag) => `${before}#${tag}`)
  for (let at = 0; at >= 0; at = path.indexOf('/', at + 1)) ids.push(before + path.slice(0, at + 1))
  return ids
}
