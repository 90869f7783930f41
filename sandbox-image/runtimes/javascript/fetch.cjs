// Gets packages from an npm registry: the program that a fetcher runs.
//
// A fetcher is a sandbox with a network and nothing else. It reads a request as JSON from its standard input, writes
// the tarballs to its working folder, and prints a line before each step and a line of JSON at the end. It runs nothing
// that it gets: npm resolves what is needed, and the tarballs are only stored.
'use strict';

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const { isBuiltin } = require('node:module');
const path = require('node:path');

// The npm of the image, or of the machine if there is no image.
const PACKED = '/opt/sandbox/npm/bin/npm-cli.js';

// Maximum number of characters of npm's messages that are passed on, and of bytes of its output that are read.
const MAX_REASON = 600;
const MAX_SAID = 1 << 20;

// Milliseconds between two checks of what npm has written, and bytes that may be there beside packages: metadata of the
// registry, and what npm unpacks for a moment.
const LOOK_MS = 200;
const BESIDE = 48 << 20;

// The options of npm's configuration that say how packages are reached, and which are old enough. Other options say
// what to do with packages, or name files of the server's machine.
const OPTIONS =
  /^(@[^:]+:registry|\/\/.*:(_authToken|_auth|_password|username|email)|registry|https?-proxy|proxy|noproxy|strict-ssl|replace-registry-host|fetch-.*|maxsockets|before|min-release-age.*)$/;

// The fields in an entry of a lock file that npm needs to continue from it.
const KEPT = [
  'name', 'version', 'resolved', 'integrity', 'dependencies', 'optionalDependencies', 'peerDependencies',
  'peerDependenciesMeta', 'optional', 'peer', 'os', 'cpu', 'libc', 'inBundle', 'bundleDependencies',
]; // prettier-ignore

const BY_ADDRESS =
  'It needs a package by its address, or one that has others packed into it; only packages of the index are taken.';

const here = process.cwd();
const at = (...names) => path.join(here, ...names);

async function main() {
  const request = JSON.parse(fs.readFileSync(0, 'utf8'));
  // The server keeps the deadline; this timer is for the case that the server cannot end the process.
  setTimeout(() => process.exit(1), (request.seconds + 5) * 1000).unref();
  for (const folder of ['home', 'project', 'tarballs']) fs.mkdirSync(at(folder));
  console.log(`looking for ${request.requirement}`);
  // The process ends by itself after this: process.exit() would cut off what a pipe has not taken yet.
  let answer = null;
  try {
    answer = await get(new Npm(request), request);
  } catch (error) {
    answer = { failed: 'index', reason: short(error.message) };
  }
  console.log(JSON.stringify(answer));
}

class Npm {
  constructor(request) {
    this.limit = request.bytes + BESIDE;
    const folders = process.env.PATH.split(':');
    const cli = [PACKED, ...folders.map((folder) => path.join(folder, 'npm'))].find(fs.existsSync);
    if (cli === undefined) throw new Error('there is no npm here');
    this.cli = fs.realpathSync(cli);
    const isOwn = ([name]) => !/^(npm|node)_/i.test(name);
    this.environment = {
      ...Object.fromEntries(Object.entries(process.env).filter(isOwn)),
      HOME: at('home'),
      TMPDIR: at('home'),
      ...request.environment,
    };
    const lines = request.configuration.flatMap((text) => text.split('\n').map((line) => line.trim()));
    const isTaken = (line) => OPTIONS.test(line.split('=')[0].trim());
    fs.writeFileSync(at('home', '.npmrc'), lines.filter(isTaken).join('\n'));
    if (request.certificates) {
      fs.writeFileSync(at('home', 'ca.pem'), request.certificates);
      this.environment.NODE_EXTRA_CA_CERTS = at('home', 'ca.pem');
    }
  }

  // Loads one of npm's own libraries.
  library(name) {
    return require(path.join(path.dirname(this.cli), '..', 'node_modules', name));
  }

  // Runs npm to its end, or until it has written more than it may. npm can start no process, load no machine code, and
  // write to no other folder. A package by its address, which may be a repository or a file of this machine, is not
  // taken.
  async run(command, options, words) {
    const knows = (flag) => process.allowedNodeEnvironmentFlags.has(flag);
    const guard = knows('--permission')
      ? ['--permission', `--allow-fs-write=${here}`, ...(knows('--allow-net') ? ['--allow-net'] : [])]
      : ['--experimental-permission', `--allow-fs-write=${here}/*`];
    const always = [
      '--json', '--loglevel=error', '--logs-max=0', '--ignore-scripts', '--no-audit', '--no-fund',
      '--no-update-notifier', '--no-bin-links', '--allow-git=none', '--allow-file=none', '--allow-directory=none',
      `--cache=${at('cache')}`, `--userconfig=${at('home', '.npmrc')}`, `--globalconfig=${at('home', 'none')}`,
    ]; // prettier-ignore
    const names = ['out', 'err'].map((name) => at('home', name));
    const files = names.map((name) => fs.openSync(name, 'w'));
    const running = spawn(process.execPath, [...guard, '--allow-fs-read=*', this.cli, command, ...always, ...options, '--', ...words], {
      cwd: at('project'),
      env: this.environment,
      stdio: ['ignore', ...files],
    });
    let isTooLarge = false;
    const looks = setInterval(() => {
      isTooLarge ||= written(here) > this.limit;
      if (isTooLarge) running.kill('SIGKILL');
    }, LOOK_MS);
    const code = await new Promise((done, failed) => {
      running.on('error', failed);
      running.on('exit', done);
    });
    clearInterval(looks);
    files.forEach(fs.closeSync);
    const [stdout, stderr] = names.map((name) => beginning(name));
    return { code, stdout, stderr, isTooLarge };
  }
}

function beginning(file) {
  const fd = fs.openSync(file);
  const bytes = Buffer.alloc(MAX_SAID);
  const length = fs.readSync(fd, bytes, 0, MAX_SAID, 0);
  fs.closeSync(fd);
  return bytes.toString('utf8', 0, length);
}

// Bytes of all files below a folder. A file that disappears meanwhile does not count.
function written(folder) {
  let total = 0;
  let entries = [];
  try {
    entries = fs.readdirSync(folder, { withFileTypes: true });
  } catch {
    return 0;
  }
  for (const entry of entries) {
    const name = path.join(folder, entry.name);
    if (entry.isDirectory()) total += written(name);
    else total += fs.lstatSync(name, { throwIfNoEntry: false })?.size ?? 0;
  }
  return total;
}

async function get(npm, request) {
  const [, name, range = ''] = /^(@?[^@]+)(?:@(.*))?$/s.exec(request.requirement);
  const before = request.lock === null ? {} : JSON.parse(request.lock);
  if (isBuiltin(name) && !range) return { found: [], version: process.versions.node };
  const entry = before[`node_modules/${name}`];
  if (entry?.name !== undefined && entry.name !== name) {
    return { failed: 'conflict', reason: `${entry.name} is there under the name of ${name}` };
  }
  const there = entry?.version;
  if (there !== undefined && npm.library('semver').satisfies(there, range)) {
    return { found: [], version: there };
  }
  // The packages that were requested in this session, each in the version that it got.
  const root = { name: 'workspace', version: '1.0.0', private: true, ...before[''] };
  fs.writeFileSync(at('project', 'package.json'), JSON.stringify(root));
  if (request.lock !== null) {
    const lock = { name: root.name, version: root.version, lockfileVersion: 3, requires: true };
    fs.writeFileSync(
      at('project', 'package-lock.json'),
      JSON.stringify({ ...lock, packages: { ...before, '': root } }),
    );
  }
  const options = [
    '--package-lock-only', '--save-exact', '--no-omit-lockfile-registry-resolved', '--allow-remote=none',
  ]; // prettier-ignore
  const done = await npm.run('install', options, [request.requirement]);
  if (done.code !== 0) return explained(npm, done, request);
  const { packages } = JSON.parse(fs.readFileSync(at('project', 'package-lock.json'), 'utf8'));

  // Installed packages stay as they are.
  const moved = Object.keys(before).find((place) => place !== '' && packages[place]?.version !== before[place].version);
  if (moved !== undefined) {
    const reason = `${nameOf(moved, before[moved])} is there in version ${before[moved].version}`;
    return { failed: 'conflict', reason };
  }
  const found = [];
  for (const [place, one] of Object.entries(packages)) {
    if (place === '' || place in before || one.inBundle) continue;
    if (!fits(one)) {
      // The package is one of several alternatives for different systems.
      if (one.optional) continue;
      return { failed: 'platform', requirement: `${nameOf(place, one)}@${one.version}` };
    }
    if (one.link || !/^https?:\/\//.test(one.resolved ?? '')) return { failed: 'refused', reason: BY_ADDRESS };
    const sha512 = /(?:^|\s)sha512-([\w+/]{86}==)/.exec(one.integrity ?? '');
    if (sha512 === null) return { failed: 'refused', reason: 'The index has no SHA-512 hash of it, but another.' };
    const hash = Buffer.from(sha512[1], 'base64').toString('hex');
    found.push({ name: nameOf(place, one), version: one.version, place, sha512: hash, resolved: one.resolved });
  }
  if (found.length > 0) {
    console.log(`downloading ${found.map((one) => `${one.name} ${one.version}`).join(', ')}`.slice(0, 400));
    const addresses = [...new Set(found.map((one) => one.resolved))];
    // The registry has given these addresses for its own packages.
    const got = await npm.run('cache', ['--allow-remote=root'], ['add', ...addresses]);
    if (got.code !== 0) return explained(npm, got, request);
  }
  found.forEach((one, number) => {
    // npm's cache names files by the hash of their content.
    const { sha512 } = one;
    const parts = [sha512.slice(0, 2), sha512.slice(2, 4), sha512.slice(4)];
    one.file = `${number}.tgz`;
    try {
      fs.linkSync(at('cache', '_cacache', 'content-v2', 'sha512', ...parts), at('tarballs', one.file));
    } catch {
      one.file = null;
    }
    delete one.resolved;
  });
  const kept = (one) => Object.fromEntries(KEPT.filter((key) => key in one).map((key) => [key, one[key]]));
  const present = Object.entries(packages).filter(([, one]) => fits(one));
  const lock = Object.fromEntries(present.map(([place, one]) => [place, kept(one)]));
  const own = packages[`node_modules/${name}`];
  const scripts = found.filter((one) => packages[one.place].hasInstallScript).map((one) => one.name);
  fs.writeFileSync(at('lock.json'), JSON.stringify(lock));
  return { found, version: own?.version ?? null, lock: 'lock.json', scripts: [...new Set(scripts)] };
}

function nameOf(place, one) {
  return one.name ?? place.slice(place.lastIndexOf('node_modules/') + 'node_modules/'.length);
}

// Whether a package is made for this system.
function fits({ os, cpu, libc }) {
  const { glibcVersionRuntime } = process.report.getReport().header;
  const isAmong = (list, own) => {
    if (list === undefined) return true;
    const all = [list].flat();
    if (all.includes(`!${own}`)) return false;
    const wanted = all.filter((one) => !one.startsWith('!'));
    return wanted.length === 0 || wanted.includes(own) || wanted.includes('any');
  };
  const ofC = glibcVersionRuntime === undefined ? 'musl' : 'glibc';
  return isAmong(os, process.platform) && isAmong(cpu, process.arch) && isAmong(libc, ofC);
}

// Returns why npm failed, if that is known.
async function explained(npm, { stdout, stderr, isTooLarge }, request) {
  if (isTooLarge || /ENOSPC|EDQUOT/.test(stdout + stderr)) return { failed: 'too_large' };
  let error = {};
  try {
    ({ error = {} } = JSON.parse(stdout));
  } catch {
    // npm has ended before it could say why.
  }
  const code = error.code ?? '';
  const text = [error.summary, error.detail].filter(Boolean).join('\n') || stderr;
  const asked = /'([^'\s]+?)(?:@[^']*)?' (?:is not in this registry|could not be found)/.exec(text)?.[1];
  if (code === 'E404' || code === 'ENOVERSIONS') {
    return { failed: 'missing', requirement: asked ?? request.requirement, sources: [] };
  }
  if (code === 'ETARGET') {
    const requirement = /No matching version found for (\S.*?)\.?(?:\s|$)/.exec(text)?.[1] ?? request.requirement;
    const versions = await versionsOf(npm, requirement.replace(/(?<=.)@.*$/s, ''));
    return { failed: 'version', requirement, versions };
  }
  if (code === 'ERESOLVE') return { failed: 'conflict', reason: short(text) };
  if (code === 'EINTEGRITY') return { failed: 'refused', reason: 'What the index sent is not what it says it has.' };
  if (code === 'EBADPLATFORM') return { failed: 'platform', requirement: request.requirement };
  if (/^EALLOW|^EUNSUPPORTEDPROTOCOL/.test(code) || code === 'ERR_ACCESS_DENIED') return { failed: 'refused', reason: BY_ADDRESS };
  return { failed: 'index', reason: short(text) };
}

async function versionsOf(npm, name) {
  const { stdout } = await npm.run('view', [], [name, 'versions']);
  try {
    return [JSON.parse(stdout)].flat().slice(-20);
  } catch {
    return [];
  }
}

function short(text) {
  const line = text.replace(/\s+/g, ' ').trim() || 'npm does not say why';
  // Addresses of registries may contain passwords.
  return line.replace(/:\/\/[^/\s@]*@/g, '://').slice(0, MAX_REASON);
}

main();
