// Devices that report while others guess secrets: the good ones must not be affected. First each device sends its
// secret until it is authenticated, which costs one run of bcrypt and is not measured. Guesses come from the same
// addresses: a device that loses its verdict meanwhile may be told to wait, as intended.
//
//   k6 run -e BASE_URL=https://edge.example -e DEVICES=devices.csv loadtest/k6/devices.js
//
// DEVICES       file of lines "id,secret" of registered devices, read from the working directory
// TARGET        path under an auth rule, /v1/telemetry
// METHOD        POST
// RATE          requests per second of good devices, 100
// FLOOD         requests per second with random secrets, for registered and unknown devices, 0
// DURATION      10s
// P99_MS        fails above this p99 latency of the good devices, ms, 50
import http from 'k6/http';
import { check, fail, sleep } from 'k6';
import { SharedArray } from 'k6/data';

const base = __ENV.BASE_URL || 'http://127.0.0.1:8080';
const target = base + (__ENV.TARGET || '/v1/telemetry');
const method = __ENV.METHOD || 'POST';
const rate = Number(__ENV.RATE || 100);
const flood = Number(__ENV.FLOOD || 0);
const duration = __ENV.DURATION || '10s';
if (!__ENV.DEVICES) fail('DEVICES is not set: name a file of lines "id,secret"');

// Relative to the working directory, as in a shell; open() is relative to the script.
const file = __ENV.DEVICES.startsWith('/') ? __ENV.DEVICES : `${__ENV.PWD}/${__ENV.DEVICES}`;
const devices = new SharedArray('devices', () =>
  open(file)
    .split('\n')
    .filter((line) => line.includes(','))
    .map((line) => ({ id: line.slice(0, line.indexOf(',')), secret: line.slice(line.indexOf(',') + 1).trim() })),
);

function arrivals(exec, perSecond) {
  return {
    executor: 'constant-arrival-rate',
    exec,
    rate: perSecond,
    duration,
    preAllocatedVUs: Math.max(10, Math.ceil(perSecond / 10)),
    maxVUs: Math.max(50, perSecond),
  };
}

export const options = {
  scenarios: Object.assign({ good: arrivals('good', rate) }, flood > 0 ? { flood: arrivals('guess', flood) } : {}),
  thresholds: {
    checks: ['rate==1'],
    'dropped_iterations{scenario:good}': ['count==0'], // otherwise the client was too slow for RATE
    'http_req_duration{scenario:good}': [`p(99)<${__ENV.P99_MS || 50}`],
  },
  setupTimeout: '1h', // one device after the other
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'p(99.9)', 'max'],
};

export function setup() {
  for (const device of devices) {
    for (let tries = 0; ; tries++) {
      const answer = send(device.id, device.secret);
      if (answer.status !== 503 || tries === 60) break; // the check reports any other answer
      sleep(Number(answer.headers['Retry-After'] || 1));
    }
  }
}

function send(id, secret) {
  const headers = { 'User-Agent': 'k6', 'Content-Type': 'application/json', 'x-device-id': id, 'x-device-token': secret };
  return http.request(method, target, method === 'POST' ? '{}' : null, { headers });
}

const pick = () => devices[Math.floor(Math.random() * devices.length)];

export function good() {
  const device = pick();
  check(send(device.id, device.secret), { 'a good device gets in': (r) => r.status >= 200 && r.status < 300 });
}

export function guess() {
  const id = Math.random() < 0.5 ? pick().id : `unknown-${Math.random()}`;
  // A throttled source gets a 503 with Retry-After.
  check(send(id, `wrong-${Math.random()}`), { 'a guess does not': (r) => r.status === 401 || r.status === 503 });
}
