// The resources of package routers in Express. Arguments: a port for case-sensitive routes, and a port for Express'
// default routes, for which /V1 is /v1.
'use strict';

const express = require('express');
const methodOverride = require('method-override');

const serve = (resource) => (request, response) => {
  const escape = (text) => text.replace(/[^\x21-\x7e]/g, (c) => `%${c.charCodeAt(0).toString(16).padStart(2, '0')}`);
  response.set({
    'x-served': resource,
    'x-saw': `${request.method} ${escape(request.path)}`,
    'x-saw-device': escape(request.get('x-gatehouse-device') ?? ''),
  });
  response.send(`served ${resource}\n`);
};

function build(caseSensitive) {
  const app = express();
  if (caseSensitive) app.set('case sensitive routing', true);
  app.set('trust proxy', true);
  app.set('etag', false);
  // For clients that can't send all methods, with the headers in its documentation.
  for (const header of ['X-HTTP-Method', 'X-HTTP-Method-Override', 'X-Method-Override']) {
    app.use(methodOverride(header, { methods: ['GET', 'POST'] }));
  }
  app.get('/v1/products/:id', serve('products'));
  app.post(['/v1/telemetry', '/v1/telemetry/:stream'], serve('telemetry'));
  app.get(['/v1/telemetry', '/v1/telemetry/:stream'], serve('telemetry-read'));
  app.all('/v1/fleet/config', serve('fleet-config'));
  app.all('/v1/me/config', serve('me-config'));
  app.all('/v1/admin/health', serve('health'));
  app.all(['/v1/admin/users', '/v1/admin/users/:id'], serve('users'));
  app.get('/v1/devices/:id', serve('device-read'));
  app.put('/v1/devices/:id', serve('device'));
  app.delete('/v1/devices/:id', serve('device'));
  app.all('/files/*name', serve('files'));
  // Express prints a stack for each request that it can't parse, unless it is in production.
  app.use((error, request, response, next) => response.status(error.status ?? 500).send('refused\n'));
  return app;
}

const [sensitive, insensitive] = process.argv.slice(2).map(Number);
build(true).listen(sensitive, '127.0.0.1');
build(false).listen(insensitive, '127.0.0.1');
