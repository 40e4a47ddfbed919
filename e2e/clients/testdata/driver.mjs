// Runs operations as driver.py does. Arguments: single or cluster, HOST:PORT,…, the namespace.
import { createInterface } from 'node:readline'
import { Publisher } from '@gatehouse/client'
import { createClient, createCluster } from 'redis'

const [deployment, addresses, namespace] = process.argv.slice(2)
const urls = addresses.split(',').map((address) => ({ url: `redis://${address}` }))
const socket = { reconnectStrategy: () => 1 }
const client = deployment === 'cluster'
  ? createCluster({ rootNodes: urls, defaults: { socket } })
  : createClient({ ...urls[0], socket })
client.on('error', () => {})
await client.connect()
const p = new Publisher(client, { namespace })
const kinds = { StaleError: 'stale', NotFoundError: 'not_found', InvalidError: 'invalid', ExistsError: 'exists' }
const object = (key, body, tag, more) => ({ key, body, contentType: 'text/plain', tags: [tag], ...more })
const operations = {
  put: (key, body, tag) => p.put(object(key, body, tag)),
  put_version: (key, body, tag, version) => p.put(object(key, body, tag, { version: Number(version) })),
  put_if: (key, body, tag, version) => p.put(object(key, body, tag, { ifVersion: Number(version) })),
  put_absent: (key, body, tag) => p.put(object(key, body, tag, { ifAbsent: true })),
  delete: (key) => p.delete(key),
  purge: (tag) => p.purge({ tag }),
  put_device: (id, hash) => p.putDevice(id, { hashes: [hash] }),
  add_device: (id, hash) => p.putDevice(id, { hashes: [hash], replace: false }),
  set_device: (id, name) => p.setDevice(id, { add: [name] }),
  rotate_device: (id, secret) => p.rotateDevice(id, secret, { cost: 4 }),
  revoke_device: (id) => p.revokeDevice(id),
  force_revoke_device: (id) => p.revokeDevice(id, { force: true }),
  delete_device: (id) => p.deleteDevice(id),
  force_delete_device: (id) => p.deleteDevice(id, { force: true }),
  invalidate_device: (id) => p.invalidateDevice(id),
}
for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...args] = line.split('\t')
  try {
    console.log('ok', (await operations[name](...args))?.version ?? 0)
  } catch (error) {
    if (kinds[error.name]) console.log('error', kinds[error.name])
    else console.log('lost', String(error).replaceAll('\n', ' '))
  }
}
process.exit()
