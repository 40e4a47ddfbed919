// Secrets of devices, and their hashes: docs/redis-contract.md, section Hashes.
import { createHmac, randomBytes, randomInt, timingSafeEqual } from 'node:crypto'
import bcrypt from 'bcryptjs'
import { InvalidError } from './errors.js'
import { checkDeviceId, crc32 } from './keys.js'

const base32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'
const maxSecret = 72

/** A key of the scheme gh1, from the content of its file: at least 32 random bytes. Redis never has it. */
export class Pepper {
  readonly id: string
  readonly #key: Buffer

  constructor(content: string | Uint8Array) {
    const text = Buffer.from(content).toString('latin1').replace(/^[\t-\r ]+|[\t-\r ]+$/g, '')
    if (text.length < 32 || text.length > 4096) {
      throw new InvalidError(`a pepper of ${text.length} bytes, want 32 to 4096: openssl rand -hex 32 makes one`)
    }
    this.#key = Buffer.from(text, 'latin1')
    this.id = this.#mac('gatehouse gh1, id').subarray(0, 8).toString('hex')
  }

  #mac(purpose: string, ...parts: (string | Buffer)[]): Buffer {
    const mac = createHmac('sha256', this.#key).update(`${purpose}\0`)
    for (const part of parts) mac.update(part)
    return mac.digest()
  }

  /** A gh1 hash of a generated secret. */
  hash(secret: string): string {
    if (!isGenerated(secret)) throw new InvalidError('only generated secrets can be stored as gh1: see newSecret')
    const salt = randomBytes(16)
    return `$gh1$${this.id}$${text(salt)}$${text(this.#mac('gatehouse gh1, hash', salt, secret))}`
  }

  /** Whether a gh1 hash is one of the secret under this pepper. */
  matches(hash: string, secret: string): boolean {
    const parts = hash.split('$')
    if (parts.length !== 5 || parts[1] !== 'gh1' || parts[2] !== this.id || !isGenerated(secret)) return false
    const [salt, key] = parts.slice(3).map((part) => Buffer.from(part.replaceAll('.', '+'), 'base64'))
    const want = this.#mac('gatehouse gh1, hash', salt!, secret)
    return key!.length === want.length && timingSafeEqual(key!, want)
  }
}

function text(data: Buffer): string {
  return data.toString('base64').replace(/=+$/, '')
}

/** A new secret with 130 random bits: `gh_…` with a checksum. */
export function newSecret(): string {
  let secret = 'gh_'
  for (let i = 0; i < 26; i++) secret += base32[randomInt(32)]
  return `${secret}_${checksum(secret)}`
}

function checksum(text: string): string {
  return crc32(text).toString(16).padStart(8, '0')
}

/** Whether a secret has the form of newSecret, and its checksum is right. */
export function isGenerated(secret: string): boolean {
  return /^gh_[A-Z2-7]{26}_[0-9a-f]{8}$/.test(secret) && secret.slice(30) === checksum(secret.slice(0, 29))
}

/** The API key of a device with a generated secret. */
export function apiKey(id: string, secret: string): string {
  checkDeviceId(id)
  if (!isGenerated(secret)) throw new InvalidError('only a generated secret has an API key: see newSecret')
  return `gh_${id}_${secret.slice(3)}`
}

/** Throws InvalidError if no client can send the secret, without quoting it. */
export function checkSecret(id: string, secret: string): void {
  const data = Buffer.from(secret)
  if (data.length < 1 || data.length > maxSecret) {
    throw new InvalidError(`secret of ${id}: ${data.length} bytes, want 1 to ${maxSecret}`)
  }
  if (!/^(?!\xef\xbb\xbf)[^\x00- \x7f]([^\x00-\x1f\x7f]*[^\x00- \x7f])?$/.test(data.toString('latin1'))) {
    throw new InvalidError(
      `secret of ${id}: has a control character, a blank at an end, or a byte order mark, which no header can carry`
    )
  }
  if (secret.startsWith('gh_') && !isGenerated(secret)) {
    throw new InvalidError(`secret of ${id}: begins with gh_, but its checksum is wrong`)
  }
}

/** The hash of a secret: gh1 with a pepper, otherwise bcrypt, which takes some 0.3 s. */
export async function hashSecret(secret: string, options: { cost?: number; pepper?: Pepper } = {}): Promise<string> {
  if (options.pepper) return options.pepper.hash(secret)
  const cost = options.cost ?? 12
  if (cost < 4 || cost > 15) throw new InvalidError(`cost ${cost}: is out of 4 to 15`)
  return bcrypt.hash(secret, cost)
}

/** Whether a hash of bcrypt or, with its pepper, gh1 is one of the secret; false for other schemes. */
export async function matches(hash: string, secret: string, pepper?: Pepper): Promise<boolean> {
  if (hash.startsWith('$2')) return bcrypt.compare(secret, hash)
  return pepper?.matches(hash, secret) ?? false
}
