// Reads with and without a validator, at a constant arrival rate.
//
//   k6 run -e BASE_URL=https://edge.example -e PATHS=/v1/products/1,/v1/products/2 loadtest/k6/read.js
//
// PATHS         comma separated; each must be published and under a cache rule
// RATE          requests per second, 100
// DURATION      10s
// CONDITIONAL   share of the requests that send If-None-Match, 0.7
// DEVICE_ID, DEVICE_SECRET   sent as x-device-id and x-device-token, for rules with auth
// P99_MS        fails above this p99 latency, ms, 50
// HIT_RATIO     fails below this share of answers from the edge, 0.99
import http from 'k6/http';
import { check } from 'k6';
import { Rate } from 'k6/metrics';

const base = __ENV.BASE_URL || 'http://127.0.0.1:8080';
const paths = (__ENV.PATHS || '/v1/products/1').split(',');
const rate = Number(__ENV.RATE || 100);
const conditional = Number(__ENV.CONDITIONAL || 0.7);
const device = __ENV.DEVICE_ID ? { 'x-device-id': __ENV.DEVICE_ID, 'x-device-token': __ENV.DEVICE_SECRET } : {};

const hits = new Rate('edge_hits');

export const options = {
  scenarios: {
    read: {
      executor: 'constant-arrival-rate',
      rate,
      duration: __ENV.DURATION || '10s',
      preAllocatedVUs: Math.max(10, Math.ceil(rate / 10)),
      maxVUs: Math.max(50, rate),
    },
  },
  thresholds: {
    checks: ['rate==1'],
    dropped_iterations: ['count==0'], // otherwise the client was too slow for RATE
    http_req_duration: [`p(99)<${__ENV.P99_MS || 50}`],
    edge_hits: [`rate>=${__ENV.HIT_RATIO || 0.99}`],
  },
  summaryTrendStats: ['med', 'p(90)', 'p(99)', 'p(99.9)', 'max'],
};

// The entity-tags that this virtual user has received, by path.
const tags = {};

export default function () {
  const path = paths[Math.floor(Math.random() * paths.length)];
  const headers = Object.assign({ 'User-Agent': 'k6', Accept: '*/*' }, device);
  const asked = tags[path] && Math.random() < conditional ? tags[path] : undefined;
  if (asked) headers['If-None-Match'] = asked;
  const answer = http.get(base + path, { headers, tags: { name: asked ? 'conditional' : 'plain' } });
  tags[path] = answer.headers['Etag'];
  hits.add((answer.headers['Cache-Status'] || '').includes('gatehouse; hit'));
  check(answer, {
    '200, or 304 to a validator': (r) => r.status === 200 || (r.status === 304 && asked !== undefined),
    'has an entity tag': (r) => r.headers['Etag'] !== undefined,
    'a 304 confirms the tag that was sent': (r) => r.status !== 304 || r.headers['Etag'] === asked,
  });
}
