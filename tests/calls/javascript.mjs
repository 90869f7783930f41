// Tests of the module `tools` of JavaScript in Node, against a broker of this folder.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';

const folder = dirname(fileURLToPath(import.meta.url));
const module = join(folder, '../../sandbox-image/runtimes/javascript/calls.cjs');
const name = `llm-sandbox-test-js-${process.pid}`;
const broker = spawn('python3', [join(folder, 'broker.py'), name], { stdio: ['pipe', 'pipe', 'inherit'] });
await new Promise((done) => broker.stdout.once('data', done));
after(() => broker.stdin.end());

process.env.SANDBOX_TOOLS = name;
const renew = createRequire(import.meta.url)(module);
const { tools } = globalThis;
const counted = () => tools.crm.counted();

test('a call promises the answer as an object', async () => {
  const found = await tools.crm.searchContacts({ query: 'Ann', limit: 2 });
  assert.deepEqual(found, { contacts: [{ id: 0, name: 'Ann 0' }, { id: 1, name: 'Ann 1' }], total: 100 });
  assert.equal((await tools.crm.search_contacts('Ann', { limit: 1 })).contacts.length, 1);
});

test('names are camel case or exact', async () => {
  assert.equal((await tools.crm.searchDeals({ a: 'x', b: 1 })).tool, 'search-deals');
  assert.equal((await tools.crm['search-deals']({ a: 'x', b: 1 })).tool, 'search-deals');
  assert.equal((await tools.crm.import({ data: [1] })).tool, 'import');
  assert.equal((await tools.myFiles['read.file']({ path: 'x' })).tool, 'read.file');
  assert.equal((await tools.upstream('my-files')['read-file']()).tool, 'read-file');
});

test('services over HTTP are upstreams', async () => {
  for (const service of [tools.weather, tools.http.weather]) {
    const got = await service.get('/v1/x', { params: { city: 'Ulm' } });
    assert.deepEqual(got, { tool: 'get', path: '/v1/x', params: { city: 'Ulm' } });
  }
});

test('arguments are checked before the call', async () => {
  for (const [words, act] of [
    [/needs 'query': search_contacts\({ query: string, limit\?: integer, sort\?/, () => tools.crm.searchContacts({})],
    [/no argument 'qurey'; did you mean 'query'\?/, () => tools.crm.searchContacts({ qurey: 'x' })],
    [/'limit' of type integer, not "5"/, () => tools.crm.searchContacts({ query: 'x', limit: '5' })],
    [/as one of "name", "newest", not "newst"/, () => tools.crm.searchContacts({ query: 'x', sort: 'newst' })],
    [/takes one object: search-deals\({ a: string, b: integer }\)/, () => tools.crm.searchDeals('x', 1)],
    [/no tool 'serchContacts'; did you mean 'searchContacts'/, () => tools.crm.serchContacts({ query: 'x' })],
    [/no upstream 'salesforce'; there are: crm, myFiles, weather, wiki/, () => tools.salesforce.x()],
    [/at most 1000000/, () => tools.crm.echo({ value: 'x'.repeat(1_000_001) })],
  ]) {
    await assert.rejects(act, words);
  }
  assert.equal('sort' in (await tools.crm.searchContacts({ query: 'x', sort: null })), false);
});

test('errors have a class for each kind and the stack of the call', async () => {
  const error = await tools.crm.fail({ kind: 'upstream', message: 'no such person' }).catch((error) => error);
  assert.ok(error instanceof tools.UpstreamError && error instanceof tools.ToolError && error instanceof Error);
  assert.equal(`${error}`, 'UpstreamError: crm.fail: crm says: no such person');
  assert.deepEqual([error.kind, error.upstream, error.tool], ['upstream', 'crm', 'fail']);
  assert.match(error.stack, /^UpstreamError: crm\.fail: crm says: no such person\n {4}at .*javascript\.mjs/);
  assert.doesNotMatch(error.stack, /tools\.cjs/);
  assert.doesNotMatch(inspect(error), /kind:/);
  await assert.rejects(tools.crm.fail({ kind: 'denied' }), { name: 'Denied', kind: 'denied' });
  await assert.rejects(tools.crm.fail({ kind: 'newer' }), { name: 'ToolError', kind: 'newer' });
  await assert.rejects(tools.crm.hangUp(), { kind: 'cancelled', message: /connection was closed/ });
  await assert.rejects(tools.crm.garbage(), { kind: 'unavailable' });
});

test('at most eight calls are made at the same time, and the others wait', async () => {
  const values = await Promise.all(Array.from({ length: 30 }, (_, i) => tools.crm.slow({ seconds: 0.01 + i / 10000 })));
  assert.equal(values.length, 30);
  const { most } = await counted();
  assert.ok(most > 1 && most <= 8, most);
});

test('a later run has new connections', async () => {
  const before = (await counted()).connections;
  renew();
  assert.equal((await counted()).connections, before + 1);
});

test('pages follow the cursor of the answers', async () => {
  const ids = [];
  for await (const page of tools.crm.listContacts.pages({ pageSize: 1 })) ids.push(page.contacts[0].id);
  assert.deepEqual(ids, [0, 1, 2]);
  for await (const page of tools.crm.listContacts.pages()) ids.push(page.contacts.length);
  assert.deepEqual(ids, [0, 1, 2, 2, 2, 2]);
});

test('several items are an array, none is null, and files have contents', async () => {
  const [text, file] = await tools.crm.several();
  assert.deepEqual([text, `${file}`, file.mimeType], ['text', '/mnt/data/calls/a.png', 'image/png']);
  assert.equal(await tools.crm.nothing(), null);
  assert.equal(await tools.crm.echo({ value: 'Köln 😀' }), 'Köln 😀');
  const path = join(mkdtempSync(join(tmpdir(), 'calls-')), 'a.json');
  writeFileSync(path, '{"a": 1}');
  assert.deepEqual((await tools.crm.file({ path })).json(), { a: 1 });
});

test('search, list and help are lines', async () => {
  const found = await tools.search('contacts');
  const line = 'tools.crm.searchContacts({ query: string, limit?: integer, sort?: "name"|"newest", from?: string })  Finds contacts.';
  assert.equal(`${found}`, line);
  for (const shown of [found, found[0]]) assert.equal(inspect(shown), line);
  assert.equal(JSON.parse(JSON.stringify(found))[0].upstream, 'crm');
  assert.match(`${await tools.search('import')}`, /import\({ data, option_0\?: string\[\],.*, … }\) {2}Imports records .* (several|kinds|of)…$/);
  assert.equal((await tools.list())[3].toString(), 'tools.wiki [unavailable: wiki: its process has ended]  Pages');
  assert.match(inspect(await tools.list()), /^tools\.crm \(15 tools\)  Customers\n/);
  const lines = `${await tools.list('crm')}`.split('\n');
  assert.equal(lines[0], line);
  assert.ok(lines.includes('tools.crm.deleteAll() [a person is asked]'), lines);
  const help = await tools.crm.searchContacts.help();
  for (const line of ['Best first.', 'query (string, required): words of the name', 'sort (string): one of "name", "newest".']) {
    assert.ok(help.includes(line), help);
  }
});

test('an upstream is no promise', async () => {
  assert.equal(typeof (await tools.crm).searchContacts, 'function');
  assert.match(inspect(tools.crm), /^Upstream/);
  assert.equal(JSON.stringify({ tools }).includes('crm'), false);
});

const program = (code, env = {}) => {
  const options = { encoding: 'utf8', env: { ...process.env, ...env }, timeout: 20_000 };
  return spawnSync(process.execPath, ['--require', module, '--eval', code], options);
};

test('a program ends by itself after its calls', () => {
  const ended = program('tools.crm.echo({ value: 1 }).then(async () => console.log(await tools.crm.echo({ value: 2 })))');
  assert.deepEqual([ended.stdout, ended.status], ['2\n', 0], ended.stderr);
});

test('a program can have a variable of its own with that name, and loads nothing if it uses none', () => {
  const code = 'console.log(process.moduleLoadList.includes("NativeModule net"), Object.keys(require.cache).length); tools = 5; console.log(tools)';
  const ended = program(code);
  assert.equal(ended.stdout, 'false 1\n5\n', ended.stderr);
});

test('a worker thread and a child process have the tools if they load them', () => {
  const call = `require(${JSON.stringify(module)}); tools.crm.echo({ value: 1 }).then(console.log)`;
  const child = `require('node:child_process').spawnSync(process.execPath, ['-e', ${JSON.stringify(call)}], { stdio: 'inherit' });`;
  const worker = `new (require('node:worker_threads').Worker)(${JSON.stringify(call)}, { eval: true, execArgv: [] });`;
  const ended = program(`${child} ${worker}`);
  assert.equal(ended.stdout, '1\n1\n', ended.stderr);
});

test('without calls the module says so when it is used', () => {
  const ended = program('tools.crm.x()', { SANDBOX_TOOLS: 'nobody-listens-here' });
  assert.match(ended.stderr, /NotEnabled: calls out of this sandbox are not enabled/);
  assert.doesNotMatch(ended.stderr, /ECONNREFUSED/);
  assert.equal(ended.status, 1);
});
