// The interpreter of a workspace: one Node that runs cells, one after another, and keeps what they declare.
//
//   agent ----- socket ---> worker thread --- port ---> main thread: the cells, in V8's REPL mode
//     ^                                                          |
//     '------------------------ a socket --------------------'
//
// The worker only waits for the agent, so that it can interrupt a cell that blocks the main thread. The agent stops the
// whole process between cells.
//
// Cells share this realm and may change anything in it, so this file takes references to what it needs before the first
// cell. A cell that breaks something, or writes to the agent's descriptor, only harms itself.
'use strict';

const { AsyncLocalStorage } = require('node:async_hooks');
const fs = require('node:fs');
const inspector = require('node:inspector');
const { Console } = require('node:console');
const Module = require('node:module');
const { Writable } = require('node:stream');
const util = require('node:util');
const v8 = require('node:v8');
const vm = require('node:vm');
const { isMainThread, MessageChannel, Worker, workerData } = require('node:worker_threads');

// The agent's socket, which preserves message boundaries. An answer is a letter, JSON, a line feed, and what follows.
const CONTROL = isMainThread ? Number(process.argv[2]) : workerData.control;

// Indexes of the numbers that both threads share.
const RUNNING = 0; // number of the cell that runs, 0 when it is over
const OFFERED = 1; // number of the offer of a cell that stands, 0 when it was taken or withdrawn
const EXITED = 2; // 1 while the main thread is blocked in process.exit()
const CLEANED = 3; // number of the last `clean` request that the main thread has answered

// Time for a cell that waits to end by itself before it is interrupted, for an interruption to take effect before it is
// repeated, and for the main thread to answer a `clean` request, in milliseconds.
const GIVE_UP_MS = 20;
const INTERRUPT_MS = 60;
const CLEAN_MS = 50;

// Time for which leftovers of earlier cells, such as a timer, may delay the next cell before they are interrupted. If
// the next cell is cancelled meanwhile, it is interrupted only after this time, and the agent does not wait for long.
const LEFT_OVER_MS = 150;

if (isMainThread) main();
else listen();

// --- the worker thread ---------------------------------------------------------------------------------------

function listen() {
  const { port, shared } = workerData;
  const session = new inspector.Session();
  session.connectToMainThread();
  const buffer = Buffer.alloc(64 << 10);
  let cleaned = 0;
  let offers = 0;
  let hasStdin = false;

  // Waits until the main thread has changed this number; false if it has not after this time.
  const until = (index, isReached, ms) => {
    const end = performance.now() + ms;
    for (;;) {
      const value = Atomics.load(shared, index);
      if (isReached(value)) return true;
      const left = end - performance.now();
      if (left <= 0) return false;
      Atomics.wait(shared, index, value, left);
    }
  };
  const answered = (number, ms) => until(CLEANED, (value) => value >= number, ms);
  const isOver = (number, ms) => until(RUNNING, (value) => value !== number, ms);

  // Waits until the main thread is back in its event loop, and interrupts code that prevents that. The main thread has
  // then noticed each interruption, because it checks for them before it does anything, and none can hit the next cell.
  const clean = () => {
    for (;;) {
      cleaned += 1;
      // A new request each time: an answer to an earlier one says nothing about a later interruption.
      port.postMessage({ kind: 'clean', number: cleaned });
      if (answered(cleaned, CLEAN_MS)) return;
      session.post('Runtime.terminateExecution');
    }
  };
  const interrupt = () => {
    session.post('Runtime.terminateExecution');
    clean();
  };

  const acts = {
    cell({ number, file, stdin, most }) {
      if (Atomics.load(shared, EXITED) === 1) interrupt();
      if (stdin !== null || hasStdin) {
        // A new descriptor has the lowest number that is free.
        fs.closeSync(0);
        fs.openSync(stdin ?? '/dev/null');
        if (stdin !== null) fs.unlinkSync(stdin);
      }
      hasStdin = stdin !== null;
      const code = fs.readFileSync(file, 'utf8');
      for (;;) {
        offers += 1;
        Atomics.store(shared, OFFERED, offers);
        port.postMessage({ kind: 'cell', offer: offers, number, code, most });
        if (until(OFFERED, (value) => value === 0, LEFT_OVER_MS)) return;
        // The interruption must not hit the cell, and the cell must not begin before the interruption is over.
        if (Atomics.compareExchange(shared, OFFERED, offers, 0) === 0) return;
        interrupt();
      }
    },
    interrupt({ number }) {
      if (isOver(number, 0)) return;
      port.postMessage({ kind: 'interrupt', number });
      if (isOver(number, GIVE_UP_MS)) return;
      do {
        session.post('Runtime.terminateExecution');
        port.postMessage({ kind: 'interrupt', number });
      } while (!isOver(number, INTERRUPT_MS));
      clean();
    },
    inspect(request) {
      port.postMessage({ kind: 'inspect', ...request });
    },
    ping() {
      fs.writeSync(CONTROL, 'P{}\n');
    },
  };

  for (;;) {
    const length = fs.readSync(CONTROL, buffer);
    if (length === 0) return;
    const { kind, ...request } = JSON.parse(buffer.toString('utf8', 0, length));
    acts[kind](request);
  }
}

// --- the main thread -----------------------------------------------------------------------------------------

function main() {
  // Node's own parser, and its inspector, which --expose-internals makes available.
  const acorn = require('internal/deps/acorn/acorn/dist/acorn');
  const { Connection } = require('internal/test/binding').internalBinding('inspector');
  const { apply, ownKeys, setPrototypeOf } = Reflect;
  const Pending = Promise;
  const { inspect, types } = util;
  const { parse, stringify } = JSON;
  const { from: toBuffer, concat } = Buffer;
  const asText = Error.prototype.toString;
  const { writeSync } = fs;
  const cpuUsage = process.cpuUsage.bind(process);
  const pending = process.getActiveResourcesInfo.bind(process);
  const shared = new Int32Array(new SharedArrayBuffer(16));
  const { compareExchange, wait, store, notify } = Atomics;
  const later = setImmediate;
  const now = performance.now.bind(performance);
  const onPromise = v8.promiseHooks.onInit;
  const data = process.cwd();

  let cell = null;

  // The number of the cell that has begun what runs now, if that is known. Work that a cell has left pending continues
  // while a later cell runs.
  const begunBy = new AsyncLocalStorage();
  const within = begunBy.run.bind(begunBy);
  const ofWhich = begunBy.getStore.bind(begunBy);
  const isLeftOver = () => cell !== null && (ofWhich() ?? cell.number) !== cell.number;

  const tell = (index, value) => {
    store(shared, index, value);
    notify(shared, index);
  };

  // Writes all bytes, however few the reader takes at a time.
  const writeAll = (fd, bytes) => {
    for (let at = 0; at < bytes.length; ) {
      try {
        at += writeSync(fd, bytes, at);
      } catch (error) {
        // A child process may have set the pipe that it shares to fail instead of waiting.
        if (error.code !== 'EAGAIN') throw error;
        wait(shared, CLEANED, shared[CLEANED], 1);
      }
    }
  };

  // Removes what objects and arrays inherit, such as a toJSON() of a cell. Only for objects that no other code uses.
  const bare = (value) => {
    if (typeof value !== 'object' || value === null) return value;
    setPrototypeOf(value, null);
    const keys = ownKeys(value);
    for (let i = 0; i < keys.length; i += 1) bare(value[keys[i]]);
    return value;
  };

  const say = (kind, fields, rest) => {
    const head = toBuffer(kind + stringify(bare(fields)) + '\n');
    writeAll(CONTROL, rest === undefined ? head : concat([head, rest]));
  };

  // --- what a cell sees ---

  class Output extends Writable {
    constructor(fd) {
      super({ decodeStrings: true });
      this.fd = fd;
      this._type = 'pipe';
    }
    _write(chunk, _, done) {
      let failed = null;
      try {
        writeAll(this.fd, chunk);
      } catch (error) {
        failed = error;
      }
      done(failed);
    }
    // As in any Node, the stream cannot be closed.
    _destroy(error, done) {
      done(error);
    }
    end(chunk, encoding, done) {
      for (const last of [chunk, encoding, done]) if (typeof last === 'function') later(last);
      if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') this.write(chunk);
      return this;
    }
  }

  const provide = (object, name, value) => {
    Object.defineProperty(object, name, {
      __proto__: null,
      value,
      configurable: true,
      enumerable: object === process,
      writable: true,
    });
  };
  const outputs = { __proto__: null, stdout: new Output(1), stderr: new Output(2) };
  provide(process, 'stdout', outputs.stdout);
  provide(process, 'stderr', outputs.stderr);
  // Node's own console is not used: the inspector stores the last thousand values that are passed to it.
  provide(globalThis, 'console', new Console({ ...outputs }));

  let stdin = null;
  Object.defineProperty(process, 'stdin', {
    __proto__: null,
    configurable: true,
    enumerable: true,
    get: () => (stdin ??= fs.createReadStream('', { fd: 0, autoClose: false })),
  });

  const module_ = new Module('.');
  module_.filename = `${data}/cell`;
  module_.paths = Module._nodeModulePaths(data);
  const require_ = Module.createRequire(`${data}/cell`);
  require_.main = module_;
  for (const [name, value] of Object.entries({
    require: require_,
    module: module_,
    exports: module_.exports,
    __dirname: data,
    __filename: module_.filename,
  })) {
    provide(globalThis, name, value);
  }
  const load = vm.compileFunction('return import(name, options)', ['name', 'options'], {
    filename: module_.filename,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
  provide(globalThis, '_load_', load);
  process.argv.length = 1;

  // Node's modules by their names, as at its own prompt.
  const builtin = Module.builtinModules.filter((name) => /^[a-z]\w*$/.test(name) && !(name in globalThis));
  for (const name of builtin) {
    Object.defineProperty(globalThis, name, {
      __proto__: null,
      configurable: true,
      get: () => process.getBuiltinModule(name),
      set: (value) => provide(globalThis, name, value),
    });
  }

  // The tools that the operator has connected.
  const closeCalls = require('./calls.cjs');
  builtin.push('tools');

  // Frames of this file, and those below them, are not the user's.
  Error.prepareStackTrace = (error, frames) => {
    let end = frames.findIndex((frame) => frame.getFileName() === __filename);
    if (end === -1) end = frames.length;
    else if (end > 0 && frames[end - 1].getFileName() === 'node:inspector') end -= 1;
    let text = apply(asText, error, []);
    for (let i = 0; i < end; i += 1) text += `\n    at ${frames[i]}`;
    return text;
  };

  process.reallyExit = process.exit = (code = process.exitCode) => {
    // Leftover code must not end a later cell.
    if (isLeftOver()) throw nobody;
    // Before the cell is over, because the process may be stopped right then.
    store(shared, EXITED, 1);
    if (cell !== null) over(cell, Number.parseInt(code ?? 0, 10) & 0xff);
    // Waits until the next cell: the code that called this does not continue.
    for (;;) wait(shared, EXITED, 1);
  };

  // A signal to the process's own id ends Node, which first disconnects the inspector. A signal to any thread is one to
  // the process as well, and the threads that V8 works with live as long as the process.
  const { _kill: kill, pid: self } = process;
  const thread = Number(fs.readdirSync('/proc/self/task').find((id) => Number(id) !== self) ?? self);
  process._kill = (pid, signal) => kill(pid === self && signal !== 0 ? thread : pid, signal);

  // --- errors ---

  const lineOf = (text, line) => {
    let at = 0;
    for (let i = 1; i < line; i += 1) {
      at = text.indexOf('\n', at) + 1;
      if (at === 0) return '';
    }
    const end = text.indexOf('\n', at);
    return text.slice(at, end === -1 ? undefined : end);
  };

  // Formats an error as Node shows an uncaught one: the line, and then the stack.
  const shown = (error, place) => {
    let text;
    try {
      const isError = types.isNativeError(error) || error instanceof Error;
      text = isError ? inspect(error) : `Uncaught ${inspect(error)}`;
      // The stack has this form if there is no frame.
      if (isError && text.startsWith('[') && text.endsWith(']')) text = text.slice(1, -1);
    } catch {
      return 'Uncaught: an error that cannot be shown';
    }
    if (place === undefined && cell !== null) {
      const found = new RegExp(`\\bcell-${cell.number}:(\\d+):(\\d+)`).exec(text);
      if (found !== null) place = { line: Number(found[1]), column: Number(found[2]) };
    }
    if (place === undefined || cell === null) return text;
    const line = lineOf(cell.code, place.line);
    if (line === '' || line.length > 200) return text;
    const caret = line.slice(0, place.column - 1).replace(/[^\t]/g, ' ');
    return `cell-${cell.number}:${place.line}\n${line}\n${caret}^\n\n${text}`;
  };

  const report = (error, place) => {
    try {
      writeAll(2, toBuffer(`${shown(error, place)}\n`));
    } catch {
      // Its standard error is closed, or it has changed what this needs.
    }
  };

  const nobody = { cleaned: true };
  process.setUncaughtExceptionCaptureCallback((error) => {
    if (error === nobody) return;
    if (process.listenerCount('uncaughtException') > 0) {
      process.emit('uncaughtException', error, 'uncaughtException');
      return;
    }
    report(error);
    if (cell !== null && !isLeftOver()) cell.failed = true;
  });

  // --- cells ---

  // Receives the value that the inspector knows by an id.
  let taken;
  globalThis.take = (value) => {
    taken = value;
  };
  // Not through Node's own session, because its messages have what objects inherit.
  let asked = 0;
  let answered = null;
  const connection = new Connection((message) => {
    const answer = bare(parse(message));
    if (answer.id === asked) answered = answer;
  });
  // Sends a request. Returns the answer, if there is one at once.
  const post = (method, params) => {
    asked += 1;
    answered = null;
    connection.dispatch(stringify(bare({ id: asked, method, params })));
    const answer = answered;
    answered = null;
    return answer?.result ?? null;
  };
  const takeId = post('Runtime.evaluate', { expression: 'take' }).result.objectId;
  delete globalThis.take;
  const take = (remote) => {
    if (remote.objectId === undefined) {
      const { unserializableValue: text } = remote;
      if (text === undefined) return remote.value;
      return text.endsWith('n') ? BigInt(text.slice(0, -1)) : Number(text);
    }
    post('Runtime.callFunctionOn', {
      functionDeclaration: 'function (value) { this(value); }',
      objectId: takeId,
      arguments: [{ objectId: remote.objectId }],
      silent: true,
    });
    const value = taken;
    taken = undefined;
    return value;
  };

  // Promises of cells that have not settled. The inspector waits for them as well, and Node dies if one is collected as
  // garbage before that.
  const unsettled = new Set();

  // Starts a cell. Returns the cell's promise, which is the first promise that its evaluation makes, or the syntax
  // error.
  const evaluate = (number, code) => {
    let promise;
    const stop = onPromise((made) => {
      promise ??= made;
    });
    const answer = post('Runtime.evaluate', {
      expression: `${code}\n//# sourceURL=cell-${number}`,
      replMode: true,
      silent: true,
      objectGroup: 'cell',
    });
    stop();
    if (promise !== undefined) unsettled.add(promise);
    return { __proto__: null, promise, thrown: answer?.exceptionDetails };
  };

  // Start and end of a text that is too long, without parts of characters.
  const cut = (bytes, most) => {
    if (bytes.length <= most) return { head: bytes, tail: bytes.subarray(0, 0) };
    let start = Math.floor(most * 0.6);
    while (start > 0 && (bytes[start] & 0xc0) === 0x80) start -= 1;
    let end = bytes.length - Math.floor(most * 0.4);
    while (end < bytes.length && (bytes[end] & 0xc0) === 0x80) end += 1;
    return { head: bytes.subarray(0, start), tail: bytes.subarray(end) };
  };

  const end = (ended, kind, fields, text) => {
    cell = null;
    const { user, system } = cpuUsage(ended.cpu);
    // Before the agent is told: an interruption that comes now would hit what comes after the cell.
    tell(RUNNING, 0);
    say(kind, { number: ended.number, cpu_us: user + system, ...fields }, text);
  };

  // Whether there is still a context to evaluate cells in. The question runs no code.
  const isAble = () => post('Runtime.globalLexicalScopeNames') !== null;

  const over = (ended, code, result) => {
    if (cell !== ended) return;
    if (!isAble()) return unable(ended);
    const fields = { __proto__: null, code };
    let text;
    if (result !== undefined) {
      const bytes = toBuffer(result);
      const { head, tail } = cut(bytes, ended.most);
      fields.result = { __proto__: null, head: head.length, tail: tail.length, total: bytes.length };
      text = concat([head, tail]);
    }
    post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
    end(ended, 'D', fields, text);
  };

  // Reports that no cell can be evaluated any more; the agent then ends this process.
  const unable = (ended) => {
    if (cell !== ended) return;
    try {
      writeAll(2, toBuffer('This interpreter can run no more cells: one has changed what it needs.\n'));
    } catch {
      // Its standard error is closed.
    }
    end(ended, 'U', { code: 1 });
  };

  // Whether work with files is pending. It is done before the cell ends: a stream that was ended has been written.
  const files = () => {
    const kinds = pending();
    for (let i = 0; i < kinds.length; i += 1) {
      if (kinds[i] === 'FSReqCallback' || kinds[i] === 'FSReqPromise') return true;
    }
    return false;
  };
  const settleFiles = async () => {
    const until = now() + 1000;
    do await new Pending((done) => later(done));
    while (files() && now() < until);
  };

  const run = async (mine) => {
    stdin?.destroy();
    stdin = null;
    closeCalls();
    const { promise, thrown } = within(mine.number, () => evaluate(mine.number, withImports(mine.code)));
    if (thrown !== undefined) {
      report(take(thrown.exception), { line: thrown.lineNumber + 1, column: thrown.columnNumber + 1 });
      return over(mine, 1);
    }
    if (promise === undefined) return unable(mine);
    let value;
    try {
      try {
        value = (await promise)['.repl_result'];
      } finally {
        unsettled.delete(promise);
      }
      // A promise that the cell has not waited for, as of `main()`.
      if (types.isPromise(value)) value = await value;
    } catch (error) {
      if (cell === mine) report(error);
      mine.failed = true;
    }
    if (cell !== mine) return;
    let text;
    try {
      if (value !== undefined && !mine.failed) text = inspect(value);
    } catch (error) {
      report(error);
      mine.failed = true;
    }
    await settleFiles();
    over(mine, mine.failed ? 1 : 0, text);
  };

  const begin = async ({ number, code, most }) => {
    const mine = { __proto__: null, number, code, most, failed: false, cpu: cpuUsage() };
    cell = mine;
    try {
      await run(mine);
    } catch {
      // This program has failed, not the cell.
      unable(mine);
    }
  };

  // A cell is a script, in which there are no import statements, and import() does not work in code that the inspector
  // runs. Both become calls of a function with a name of the same length, so that columns stay right.
  const withImports = (code) => {
    if (!/\bimport\b/.test(code)) return code;
    let tree;
    try {
      const options = { allowAwaitOutsideFunction: true, allowHashBang: true, allowImportExportEverywhere: true };
      tree = acorn.parse(code, { ecmaVersion: 'latest', sourceType: 'script', ...options });
    } catch {
      // V8 gives a better error.
      return code;
    }
    const changes = [];
    const change = (start, end, text) => changes.push({ start, end, text });
    const visit = (node) => {
      if (node.type === 'ImportExpression') change(node.start, node.start + 6, '_load_');
      if (node.type === 'ImportDeclaration') change(node.start, node.end, asCall(code, node));
      for (const part of Object.values(node)) {
        if (Array.isArray(part)) part.forEach((each) => typeof each?.type === 'string' && visit(each));
        else if (typeof part?.type === 'string') visit(part);
      }
    };
    visit(tree);
    changes.sort((one, other) => other.start - one.start);
    let text = code;
    for (const { start, end, text: put } of changes) text = text.slice(0, start) + put + text.slice(end);
    return text;
  };

  // The statement as declarations, on the same number of lines.
  const asCall = (code, { start, end, specifiers, source }) => {
    const call = `await _load_(${source.raw})`;
    const lines = '\n'.repeat(code.slice(start, end).split('\n').length - 1);
    if (specifiers.length === 0) return `${call};${lines}`;
    const all = specifiers.find(({ type }) => type === 'ImportNamespaceSpecifier')?.local.name;
    const parts = specifiers.flatMap(({ type, imported, local }) => {
      if (type === 'ImportNamespaceSpecifier') return [];
      const name = type === 'ImportDefaultSpecifier' ? 'default' : (imported.name ?? imported.raw);
      return [`${name}: ${local.name}`];
    });
    if (all === undefined) return `const { ${parts.join(', ')} } = ${call};${lines}`;
    const rest = parts.length === 0 ? '' : `, { ${parts.join(', ')} } = ${all}`;
    return `const ${all} = ${call}${rest};${lines}`;
  };

  // --- the list of variables ---

  const own = new Set(Object.getOwnPropertyNames(globalThis).filter((name) => !builtin.includes(name)));

  const summary = (value) => {
    if (value === null) return 'null';
    if (typeof value === 'string') return `string ${value.length}`;
    if (typeof value === 'function') {
      return /^class\b/.test(Function.prototype.toString.call(value)) ? 'class' : 'function';
    }
    if (typeof value !== 'object') return typeof value;
    if (types.isProxy(value)) return 'Proxy';
    let name = 'Object';
    for (let at = value; at !== null; at = Object.getPrototypeOf(at)) {
      const made = Object.getOwnPropertyDescriptor(at, 'constructor')?.value;
      if (typeof made === 'function' && typeof made.name === 'string' && made.name !== '') {
        name = made.name;
        break;
      }
    }
    if (Array.isArray(value) || ArrayBuffer.isView(value)) return `${name} ${value.length ?? value.byteLength}`;
    if (types.isMap(value) || types.isSet(value)) return `${name} ${value.size}`;
    if (types.isPromise(value) || types.isDate(value) || types.isRegExp(value)) return name;
    return `${name} ${Object.keys(value).length}`;
  };

  const modules = () => {
    const known = new Map();
    for (const line of process.moduleLoadList) {
      const name = line.startsWith('NativeModule ') ? line.slice(13) : '';
      if (Module.builtinModules.includes(name)) known.set(process.getBuiltinModule(name), name);
    }
    for (const [path, { exports }] of Object.entries(require_.cache)) {
      if (path !== __filename && typeof exports === 'object') known.set(exports, path.split('/').pop());
    }
    return known;
  };

  const contents = ({ variables: most, chars }) => {
    const found = { variables: [], more: 0, imports: [] };
    const known = modules();
    const lexical = post('Runtime.globalLexicalScopeNames')?.names ?? { length: 0 };
    const globals = Object.getOwnPropertyNames(globalThis).filter((name) => !own.has(name));
    let room = 60_000;
    const add = (name, value) => {
      const module = known.get(types.isModuleNamespaceObject(value) ? (value.default ?? value) : value);
      if (module !== undefined) {
        if (found.imports.length < most && !found.imports.includes(module)) found.imports.push(module);
        return;
      }
      let kind;
      try {
        kind = summary(value);
      } catch {
        kind = 'Object';
      }
      const variable = { name: name.slice(0, chars), summary: kind.slice(0, chars) };
      room -= 2 * (variable.name.length + variable.summary.length) + 30;
      if (found.variables.length < most && room > 0) found.variables.push(variable);
      else found.more += 1;
    };
    for (let i = 0; i < lexical.length; i += 1) {
      const name = lexical[i];
      if (name.startsWith('_')) continue;
      const answer = post('Runtime.evaluate', { expression: name, silent: true, objectGroup: 'look' });
      // The variable is declared, but its cell has not reached the declaration.
      if (answer === null || answer.exceptionDetails !== undefined) continue;
      add(name, take(answer.result));
    }
    for (const name of globals) {
      const property = Object.getOwnPropertyDescriptor(globalThis, name);
      if (builtin.includes(name) && property?.get !== undefined) continue;
      if (!name.startsWith('_') && property !== undefined) add(name, property.value);
    }
    post('Runtime.releaseObjectGroup', { objectGroup: 'look' });
    found.imports.sort();
    return found;
  };

  // --- messages of the worker ---

  const { port1: port, port2 } = new MessageChannel();
  const acts = {
    __proto__: null,
    cell(request) {
      // Before the offer is taken, so that the cell is known to run as soon as it is known to be taken.
      store(shared, RUNNING, request.number);
      if (compareExchange(shared, OFFERED, request.offer, 0) === request.offer) {
        notify(shared, OFFERED);
        begin(request);
      } else if (cell === null) {
        store(shared, RUNNING, 0);
      } else {
        store(shared, RUNNING, cell.number);
      }
    },
    interrupt({ number }) {
      if (cell?.number === number) over(cell, 1);
    },
    clean({ number }) {
      if (shared[CLEANED] >= number) return;
      tell(EXITED, 0);
      // Interrupted code has left its asynchronous contexts behind, which an error clears.
      later(() => {
        tell(CLEANED, number);
        throw nobody;
      });
    },
    inspect(request) {
      let found;
      try {
        found = contents(request);
      } catch (error) {
        found = { variables: [], more: 0, imports: [] };
      }
      say('I', found);
    },
  };
  port.on('message', ({ kind, ...request }) => acts[kind](request));

  const worker = new Worker(__filename, {
    workerData: { port: port2, shared, control: CONTROL },
    transferList: [port2],
    stdout: true,
    stderr: true,
    execArgv: [],
    resourceLimits: { maxOldGenerationSizeMb: 24, maxYoungGenerationSizeMb: 4 },
  });
  worker.on('error', () => process.kill(process.pid, 'SIGKILL'));

  // The first cell finds all of this compiled.
  evaluate(0, 'undefined');
  inspect({ ready: [true] });
}
