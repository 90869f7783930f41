// The globals of cells and programs in JavaScript, and the functions that report on them to the engine. Evaluated once,
// when the image is made. Everything that is needed here is saved in constants before any user code runs.
//
// The engine evaluates a cell itself, passes the promise or the error to `watch` or `fail`, runs pending jobs, and
// calls `next` for the time to wait, until it returns -1 because the cell is over. It also calls `rejection` for each
// promise that is rejected without a handler, or is handled later. These functions of the engine can be called here:
//
//     __llm_write(stream, text)      writes text; stream 1 is standard output, 2 is standard error
//     __llm_tell(json)               reports the result of a cell
//     __llm_file(act, path, text)    acts on a file of the sandbox, or on standard input; returns JSON
//     __llm_call(request)            sends a request of tools.cjs; returns the answer, or '' if calls are not enabled
//     __llm_promise_state(promise)   0 if it is pending, 1 if it is fulfilled, 2 if it is rejected, else -1
//     __llm_promise_result(promise)  its value or its error
'use strict';
(() => {
  const write = globalThis.__llm_write;
  const tell = globalThis.__llm_tell;
  const file = globalThis.__llm_file;
  const stateOf = globalThis.__llm_promise_state;
  const resultOf = globalThis.__llm_promise_result;
  const call = globalThis.__llm_call;
  const makeTools = globalThis.__llm_make_tools;
  for (const name of ['write', 'tell', 'file', 'call', 'promise_state', 'promise_result', 'make_tools']) delete globalThis[`__llm_${name}`];
  const { stringify, parse } = JSON;
  const now = Date.now;

  // --- values as text ---------------------------------------------------------------------------------------

  const DEPTH = 2;
  const MOST = 100;
  const WIDTH = 72;
  // The name of the function by which a value says how it is shown, as in Node.
  const CUSTOM = Symbol.for('nodejs.util.inspect.custom');
  const isName = (key) => /^[A-Za-z_$][\w$]*$/.test(key);
  const quote = (text) => {
    const plain = stringify(text).slice(1, -1).replace(/\\"/g, '"');
    if (!text.includes("'")) return `'${plain}'`;
    return text.includes('"') ? stringify(text) : `"${plain}"`;
  };
  const nameOf = (value) => {
    const prototype = Object.getPrototypeOf(value);
    if (prototype === null) return '[Object: null prototype]';
    const maker = prototype.constructor;
    return typeof maker === 'function' && maker.name ? maker.name : 'Object';
  };

  const inspect = (value, depth = 0, seen = [], top = false) => {
    switch (typeof value) {
      case 'string': return top ? value : quote(value);
      case 'bigint': return `${value}n`;
      case 'number': return Object.is(value, -0) ? '-0' : String(value);
      case 'symbol': return value.toString();
      case 'function': {
        const isClass = /^class\b/.test(Function.prototype.toString.call(value));
        const text = isClass
          ? `[class ${value.name || '(anonymous)'}]`
          : `[${nameOf(value)}${value.name ? `: ${value.name}` : ' (anonymous)'}]`;
        const keys = Object.keys(value);
        return keys.length === 0 ? text : `${text} ${members(value, keys, depth, seen)}`;
      }
      case 'object': break;
      default: return String(value);
    }
    if (value === null) return 'null';
    if (seen.includes(value)) return '[Circular *1]';
    const custom = value[CUSTOM];
    if (typeof custom === 'function') {
      const text = custom.call(value, DEPTH - depth, {}, inspect);
      return typeof text === 'string' ? text : inspect(text, depth + 1, [...seen, value]);
    }
    if (value instanceof Error) return errorText(value);
    if (value instanceof Date) return isNaN(value) ? 'Invalid Date' : value.toISOString();
    if (value instanceof RegExp) return String(value);
    const inside = [...seen, value];
    const deep = depth > DEPTH;
    if (value instanceof Promise && Number(stateOf(value)) >= 0) {
      if (deep) return `[${nameOf(value)}]`;
      const is = Number(stateOf(value));
      const text = is === 0 ? '<pending>' : inspect(resultOf(value), depth + 1, inside);
      return `${nameOf(value)} ${joined('{', [is === 2 ? `<rejected> ${text}` : text], '}', depth)}`;
    }
    if (Array.isArray(value)) {
      if (deep) return '[Array]';
      const parts = [];
      for (let i = 0; i < value.length && i < MOST; i += 1) {
        parts.push(i in value ? inspect(value[i], depth + 1, inside) : '<empty>');
      }
      if (value.length > MOST) parts.push(`... ${value.length - MOST} more items`);
      return joined('[', parts, ']', depth);
    }
    if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
      const name = `${nameOf(value)}(${value.length})`;
      const parts = Array.from(value.subarray ? value.subarray(0, MOST) : value, (part) => inspect(part, depth + 1, inside));
      if (value.length > MOST) parts.push(`... ${value.length - MOST} more items`);
      return `${name} ${joined('[', parts, ']', depth)}`;
    }
    if (value instanceof Map || value instanceof Set) {
      const name = `${nameOf(value)}(${value.size})`;
      if (deep) return `[${nameOf(value)}]`;
      const parts = [];
      for (const entry of value) {
        if (parts.length === MOST) { parts.push(`... ${value.size - MOST} more items`); break; }
        parts.push(value instanceof Map
          ? `${inspect(entry[0], depth + 1, inside)} => ${inspect(entry[1], depth + 1, inside)}`
          : inspect(entry, depth + 1, inside));
      }
      return `${name} ${joined('{', parts, '}', depth)}`;
    }
    const name = nameOf(value);
    if (deep) return name === 'Object' ? '[Object]' : `[${name}]`;
    const text = members(value, Object.keys(value), depth, seen);
    return name === 'Object' ? text : `${name} ${text}`;
  };
  const members = (value, keys, depth, seen) => {
    const parts = [];
    for (const key of keys.slice(0, MOST)) {
      const { get, set, value: own } = Object.getOwnPropertyDescriptor(value, key) ?? {};
      let text;
      if (get || set) text = get && set ? '[Getter/Setter]' : get ? '[Getter]' : '[Setter]';
      else text = inspect(own, depth + 1, [...seen, value]);
      parts.push(`${isName(key) ? key : quote(key)}: ${text}`);
    }
    if (keys.length > MOST) parts.push(`... ${keys.length - MOST} more items`);
    return joined('{', parts, '}', depth);
  };
  const joined = (open, parts, close, depth) => {
    if (parts.length === 0) return open + close;
    const line = `${open} ${parts.join(', ')} ${close}`;
    if (line.length <= WIDTH && !line.includes('\n')) return line;
    const indent = '  '.repeat(depth + 1);
    if (open === '[' && parts.length > 6 && parts.every((part) => part.length < 12)) {
      const rows = [];
      for (let i = 0; i < parts.length; i += 12) rows.push(parts.slice(i, i + 12).join(', '));
      return `${open}\n${indent}${rows.join(`,\n${indent}`)}\n${'  '.repeat(depth)}${close}`;
    }
    return `${open}\n${indent}${parts.join(`,\n${indent}`)}\n${'  '.repeat(depth)}${close}`;
  };
  const errorText = (error) => {
    const head = `${error.name}: ${error.message}`.replace(/: $/, '');
    const stack = String(error.stack ?? '').split('\n').filter((line) => line.includes('cell-') || line.includes('main.js'));
    return [head, ...stack].join('\n');
  };
  const format = (first, ...rest) => {
    if (typeof first !== 'string' || !/%[sdifjoOc%]/.test(first)) {
      return [first, ...rest].map((part) => inspect(part, 0, [], true)).join(' ');
    }
    const text = first.replace(/%[sdifjoOc%]/g, (mark) => {
      if (mark === '%%') return '%';
      if (rest.length === 0) return mark;
      const part = rest.shift();
      switch (mark) {
        case '%s': return typeof part === 'string' ? part : inspect(part, 1);
        case '%d': return String(Number(part));
        case '%i': return String(parseInt(part, 10));
        case '%f': return String(parseFloat(part));
        case '%j': return stringify(part);
        case '%c': return '';
        default: return inspect(part);
      }
    });
    return [text, ...rest.map((part) => inspect(part, 0, [], true))].join(' ');
  };

  // --- the console ------------------------------------------------------------------------------------------

  let indent = '';
  const counts = new Map();
  const timers = new Map();
  const print = (stream) => (...parts) => {
    const text = parts.length === 0 ? '' : format(...parts);
    write(stream, `${indent}${indent ? text.replace(/\n/g, `\n${indent}`) : text}\n`);
  };
  const out = print(1);
  const err = print(2);
  const table = (data) => {
    if (data === null || typeof data !== 'object') return out(data);
    const rows = Object.entries(data);
    const columns = [...new Set(rows.flatMap(([, row]) => (row !== null && typeof row === 'object' ? Object.keys(row) : [])))];
    const hasValues = rows.some(([, row]) => row === null || typeof row !== 'object');
    const head = ['(index)', ...columns, ...(hasValues ? ['Values'] : [])];
    const cells = rows.map(([index, row]) => {
      const isRow = row !== null && typeof row === 'object';
      const own = columns.map((column) => (isRow && column in row ? inspect(row[column], 1) : ''));
      return [index, ...own, ...(hasValues ? [isRow ? '' : inspect(row, 1)] : [])];
    });
    const widths = head.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i].length)) + 2);
    const line = (row) => `│${row.map((cell, i) => ` ${cell}`.padEnd(widths[i])).join('│')}│`;
    const rule = (a, b, c) => a + widths.map((width) => '─'.repeat(width)).join(b) + c;
    out([rule('┌', '┬', '┐'), line(head), rule('├', '┼', '┤'), ...cells.map(line), rule('└', '┴', '┘')].join('\n'));
  };
  globalThis.console = {
    log: out, info: out, debug: out, error: err, warn: err, table,
    dir: (value) => out(inspect(value)),
    trace: (...parts) => err('Trace:', ...parts),
    assert: (holds, ...parts) => { if (!holds) err('Assertion failed', ...parts); },
    count: (label = 'default') => { counts.set(label, (counts.get(label) ?? 0) + 1); out(`${label}: ${counts.get(label)}`); },
    countReset: (label = 'default') => { counts.delete(label); },
    group: (...parts) => { if (parts.length > 0) out(...parts); indent += '  '; },
    groupEnd: () => { indent = indent.slice(2); },
    time: (label = 'default') => { timers.set(label, now()); },
    timeLog: (label = 'default', ...parts) => { out(`${label}: ${now() - timers.get(label)}ms`, ...parts); },
    timeEnd: (label = 'default') => { out(`${label}: ${now() - timers.get(label)}ms`); timers.delete(label); },
  };

  // --- timers -----------------------------------------------------------------------------------------------

  let pending = [];
  let lastTimer = 0;
  // Number of cells that have begun.
  let cells = 0;
  const schedule = (act, ms, parts, every) => {
    lastTimer += 1;
    const wait = Math.max(1, Number(ms) || 0);
    pending.push({ id: lastTimer, cell: cells, at: now() + wait, every: every ? wait : 0, run: () => act(...parts) });
    return lastTimer;
  };
  const cancel = (id) => { pending = pending.filter((timer) => timer.id !== id); };
  Object.assign(globalThis, {
    setTimeout: (act, ms, ...parts) => schedule(act, ms, parts, false),
    setInterval: (act, ms, ...parts) => schedule(act, ms, parts, true),
    setImmediate: (act, ...parts) => schedule(act, 0, parts, false),
    clearTimeout: cancel, clearInterval: cancel, clearImmediate: cancel,
    structuredClone: (value) => clone(value, new Map()),
    global: globalThis,
  });
  globalThis.queueMicrotask ??= (act) => { Promise.resolve().then(act); };
  globalThis.performance ??= { now: () => now(), timeOrigin: now() };
  const clone = (value, known) => {
    if (typeof value === 'function' || typeof value === 'symbol') throw new TypeError('it cannot be cloned');
    if (value === null || typeof value !== 'object') return value;
    if (known.has(value)) return known.get(value);
    const keep = (copy) => { known.set(value, copy); return copy; };
    if (value instanceof Date) return keep(new Date(value));
    if (value instanceof Map) { const copy = keep(new Map()); for (const [k, v] of value) copy.set(clone(k, known), clone(v, known)); return copy; }
    if (value instanceof Set) { const copy = keep(new Set()); for (const v of value) copy.add(clone(v, known)); return copy; }
    if (ArrayBuffer.isView(value)) return keep(value.slice());
    const copy = keep(Array.isArray(value) ? [] : {});
    for (const key of Object.keys(value)) copy[key] = clone(value[key], known);
    return copy;
  };

  // --- locales ------------------------------------------------------------------------------------------------

  // QuickJS has no locales and ignores the ones that a program requests. These functions use en-US, Node's default, and
  // throw an error if a program requests another locale, or an option that is not supported.
  const asked = (method, locales, options, known, isKnownLocale) => {
    const refuse = (what) => {
      throw new RangeError(`${method}: ${what} is not available: here is no Intl, and en-US alone. Build the text in code.`);
    };
    for (const locale of [locales].flat()) {
      if (locale !== undefined && !isKnownLocale.test(locale)) refuse(`the locale ${locale}`);
    }
    for (const [name, value] of Object.entries(options ?? {})) {
      const values = known[name];
      if (value !== undefined && !(values && (values === true || values.includes(value)))) refuse(`the option ${name}: ${value}`);
    }
    return options ?? {};
  };
  const ENGLISH = /^en(-US)?$/;
  // Languages that sort letters as English does.
  const SORTED_ALIKE = /^(en|de|fr|it|nl|pt)(-[A-Z]{2})?$/;
  const CURRENCIES = { USD: '$', EUR: '€', GBP: '£', JPY: '¥', INR: '₹', KRW: '₩', CNY: 'CN¥', CAD: 'CA$', AUD: 'A$', BRL: 'R$' };
  const OF_NUMBERS = {
    style: ['decimal', 'percent', 'currency'], currency: Object.keys(CURRENCIES), useGrouping: [true, false],
    minimumFractionDigits: true, maximumFractionDigits: true,
  };
  // Returns the number, in decimal notation, times ten to the power of `places`, rounded to an integer.
  const scaled = (value, places) => {
    const [digits, exponent] = typeof value === 'bigint' ? [String(value), 0] : value.toExponential().split('e');
    const [whole, fraction = ''] = digits.split('.');
    const power = Number(exponent) - fraction.length + places;
    const all = BigInt(whole + fraction);
    if (power >= 0) return all * 10n ** BigInt(power);
    const unit = 10n ** BigInt(-power);
    return (all + unit / 2n) / unit;
  };
  const numberText = (value, locales, options) => {
    const { style = 'decimal', currency, useGrouping = true, ...bounds } = asked('toLocaleString', locales, options, OF_NUMBERS, ENGLISH);
    if (style === 'currency' && currency === undefined) throw new TypeError('Currency code is required with currency style.');
    const usual = { decimal: [0, 3], percent: [0, 0], currency: ['JPY', 'KRW'].includes(currency) ? [0, 0] : [2, 2] }[style];
    const { minimumFractionDigits: least = Math.min(usual[0], bounds.maximumFractionDigits ?? usual[0]) } = bounds;
    const { maximumFractionDigits: most = Math.max(usual[1], least) } = bounds;
    if (!(least >= 0 && least <= most && most <= 100)) throw new RangeError('maximumFractionDigits value is out of range.');
    const isNegative = value < 0 || Object.is(value, -0);
    const size = isNegative ? -value : value;
    let text;
    if (typeof value === 'number' && !Number.isFinite(value)) text = Number.isNaN(value) ? 'NaN' : '∞';
    else {
      const digits = String(scaled(size, most + (style === 'percent' ? 2 : 0))).padStart(most + 1, '0');
      let [whole, fraction] = [digits.slice(0, digits.length - most), digits.slice(digits.length - most)];
      while (fraction.length > least && fraction.endsWith('0')) fraction = fraction.slice(0, -1);
      if (useGrouping) whole = whole.replace(/\B(?=(\d{3})+$)/g, ',');
      text = fraction ? `${whole}.${fraction}` : whole;
    }
    return `${isNegative ? '-' : ''}${style === 'currency' ? CURRENCIES[currency] : ''}${text}${style === 'percent' ? '%' : ''}`;
  };
  const dateText = (method, parts) => function (locales, options) {
    asked(method, locales, options, {}, ENGLISH);
    if (isNaN(this)) return 'Invalid Date';
    const two = (number) => String(number).padStart(2, '0');
    const date = `${this.getMonth() + 1}/${this.getDate()}/${this.getFullYear()}`;
    const hours = this.getHours();
    const time = `${hours % 12 || 12}:${two(this.getMinutes())}:${two(this.getSeconds())} ${hours < 12 ? 'AM' : 'PM'}`;
    return [...(parts.date ? [date] : []), ...(parts.time ? [time] : [])].join(', ');
  };
  const firstOf = (a, b, order) => {
    for (let i = 0; i < Math.min(a.length, b.length); i += 1) {
      const which = order(a[i], b[i]);
      if (which) return Math.sign(which);
    }
    return Math.sign(a.length - b.length);
  };
  const byCode = (x, y) => (x === y ? 0 : x < y ? -1 : 1);
  const kindOf = (unit) => (/^\p{L}/u.test(unit) ? 2 : /^\p{N}/u.test(unit) ? 1 : 0);
  // Letters that are sorted as other letters with a mark.
  const SPELT = { ß: 'ss', æ: 'ae', œ: 'oe', ø: 'o', đ: 'd', ł: 'l' };
  const spelt = (char) => {
    const lower = char.toLowerCase();
    return `${char === lower ? SPELT[lower] : SPELT[lower].toUpperCase()}\u0338`;
  };
  const compareWords = (one, other, locales, options) => {
    const known = { numeric: [true, false], sensitivity: ['base', 'accent', 'variant'] };
    const { numeric = false, sensitivity = 'variant' } = asked('localeCompare', locales, options, known, SORTED_ALIKE);
    const [a, b] = [one, other].map((text) => text.normalize('NFD').replace(/[ßæœøđł]/gi, spelt));
    // Compares letters first, then accents, then case, as in Unicode's order.
    const letters = (text) => text.replace(/\p{M}/gu, '').toLowerCase().match(numeric ? /\d+|\D/gsu : /./gsu) ?? [];
    const byLetter = (x, y) => kindOf(x) - kindOf(y) || (numeric && /^\d/.test(x) ? Number(x) - Number(y) : byCode(x, y));
    const marks = (text) => text.toLowerCase().match(/\P{M}\p{M}*/gu)?.map((unit) => unit.slice(1)) ?? [];
    const isUpper = (char) => (char === char.toLowerCase() ? 0 : 1);
    return firstOf(letters(a), letters(b), byLetter)
      || (sensitivity === 'base' ? 0 : firstOf(marks(a), marks(b), byCode))
      || (sensitivity === 'variant' ? firstOf([...a], [...b], (x, y) => isUpper(x) - isUpper(y)) : 0);
  };
  const changeCase = (method) => {
    const plain = String.prototype[method.replace('Locale', '')];
    return function (locales) {
      asked(method, locales, {}, {}, /^(?!(tr|az|lt|el)\b)/i);
      return plain.call(this);
    };
  };
  const define = (kind, methods) => {
    for (const [name, value] of Object.entries(methods)) {
      Object.defineProperty(kind.prototype, name, { value, writable: true, configurable: true });
    }
  };
  define(Number, { toLocaleString(locales, options) { return numberText(Number(this), locales, options); } });
  define(BigInt, { toLocaleString(locales, options) { return numberText(BigInt(this), locales, options); } });
  define(Date, {
    toLocaleString: dateText('toLocaleString', { date: true, time: true }),
    toLocaleDateString: dateText('toLocaleDateString', { date: true }),
    toLocaleTimeString: dateText('toLocaleTimeString', { time: true }),
  });
  define(String, {
    localeCompare(other, locales, options) { return compareWords(String(this), String(other), locales, options); },
    toLocaleUpperCase: changeCase('toLocaleUpperCase'),
    toLocaleLowerCase: changeCase('toLocaleLowerCase'),
  });

  // --- files ------------------------------------------------------------------------------------------------

  class SystemError extends Error {}
  const ask = (act, path, text = '') => {
    if (typeof path !== 'string') throw new TypeError('The "path" argument must be of type string.');
    const answer = parse(file(act, path, text));
    if (answer.error === undefined) return answer.value;
    const error = new SystemError(`${answer.error}: ${answer.words}, ${act} '${path}'`);
    throw Object.assign(error, { name: 'Error', code: answer.error, path, syscall: act });
  };
  // Bytes are passed as characters from 0 to 255.
  const toBytes = (data) => {
    if (ArrayBuffer.isView(data)) {
      let text = '';
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      for (let i = 0; i < bytes.length; i += 1) text += String.fromCharCode(bytes[i]);
      return text;
    }
    return unescape(encodeURIComponent(String(data).toWellFormed?.() ?? String(data)));
  };
  const decoded = (bytes, encoding) => {
    if (/^(latin1|binary)$/i.test(encoding)) return bytes;
    try { return decodeURIComponent(escape(bytes)); } catch { return bytes; }
  };
  class Buffer extends Uint8Array {
    toString(encoding) { return decoded(toBytes(this), encoding); }
  }
  const asRead = (bytes, encoding) => (encoding ? decoded(bytes, encoding) : Buffer.from(bytes, (char) => char.charCodeAt(0)));
  const encodingOf = (options) => (typeof options === 'string' ? options : options?.encoding);
  const readInput = () => ask('input', '/dev/stdin');
  const fs = {
    readFileSync: (path, options) => asRead(path === 0 || path === '/dev/stdin' ? readInput() : ask('open', path), encodingOf(options)),
    writeFileSync: (path, data) => { ask('write', path, toBytes(data)); },
    appendFileSync: (path, data) => { ask('append', path, toBytes(data)); },
    existsSync: (path) => { try { ask('stat', path); return true; } catch { return false; } },
    readdirSync: (path) => ask('scandir', path),
    unlinkSync: (path) => { ask('unlink', path); },
    rmSync: (path, options) => { try { ask('unlink', path); } catch (error) { if (!options?.force) throw error; } },
    mkdirSync: (path, options) => {
      if (!options?.recursive) { ask('mkdir', path); return; }
      const parts = path.split('/');
      for (let i = 1; i <= parts.length; i += 1) {
        const part = parts.slice(0, i).join('/');
        if (part && !fs.existsSync(part)) ask('mkdir', part);
      }
    },
    statSync: (path) => {
      const { size, folder, modified } = ask('stat', path);
      return { size, mtimeMs: modified, mtime: new Date(modified), isFile: () => !folder, isDirectory: () => folder };
    },
  };
  fs.promises = Object.fromEntries(Object.entries(fs).map(([name, act]) => [name.replace('Sync', ''), async (...parts) => act(...parts)]));
  const normalize = (path) => {
    const kept = [];
    for (const part of path.split('/')) {
      if (part === '..' && kept.length > 0 && kept[kept.length - 1] !== '..') kept.pop();
      else if (part !== '' && part !== '.') kept.push(part);
    }
    return (path.startsWith('/') ? '/' : '') + kept.join('/') || '.';
  };
  const path = {
    sep: '/', normalize,
    join: (...parts) => normalize(parts.filter(Boolean).join('/')),
    resolve: (...parts) => normalize(parts.reduce((all, part) => (part.startsWith('/') ? part : `${all}/${part}`), '/mnt/data')),
    basename: (text, end = '') => { const name = text.replace(/\/+$/, '').split('/').pop(); return end && name.endsWith(end) ? name.slice(0, -end.length) : name; },
    dirname: (text) => text.replace(/\/+$/, '').split('/').slice(0, -1).join('/') || (text.startsWith('/') ? '/' : '.'),
    extname: (text) => /(?<=[^/])\.[^./]*$/.exec(text)?.[0] ?? '',
  };
  const modules = { fs, 'fs/promises': fs.promises, path, util: { inspect: (value) => inspect(value), format } };
  globalThis.require = (name) => {
    const found = modules[String(name).replace(/^node:/, '')];
    if (found) return found;
    throw Object.assign(new Error(`Cannot find module '${name}': here are only ${Object.keys(modules).join(', ')}`), { code: 'MODULE_NOT_FOUND' });
  };

  // A call blocks the guest, so that its promise is already kept.
  globalThis.tools = makeTools(async (request) => call(request) || null, (path) => fs.readFileSync(path));

  // --- standard input ---------------------------------------------------------------------------------------

  let input;
  // Each cell has its own input, so that listeners of an earlier cell do not receive it.
  const resetInput = () => { input = { listeners: [], encoding: undefined, flows: false, chunk: null }; };
  resetInput();
  const emit = (event, ...parts) => {
    for (const { name, act } of [...input.listeners]) if (name === event) act.call(stdin, ...parts);
  };
  // All input is available at once: it is delivered in one piece, before the cell is over.
  const flow = () => {
    if (input.flows) return;
    input.flows = true;
    Promise.resolve().then(() => {
      const bytes = readInput();
      if (bytes !== '') {
        input.chunk = asRead(bytes, input.encoding);
        emit('readable');
        const chunk = stdin.read();
        if (chunk !== null) emit('data', chunk);
      }
      emit('end');
      emit('close');
    });
  };
  const on = (name, act) => {
    input.listeners.push({ name, act });
    if (name === 'data' || name === 'readable') flow();
    return stdin;
  };
  const off = (name, act) => {
    input.listeners = input.listeners.filter((listener) => listener.name !== name || (listener.act !== act && listener.act.of !== act));
    return stdin;
  };
  const stdin = {
    fd: 0, isTTY: false, on, addListener: on, off, removeListener: off,
    once: (name, act) => on(name, Object.assign((...parts) => { off(name, act); act.call(stdin, ...parts); }, { of: act })),
    setEncoding: (encoding = 'utf8') => { input.encoding = encoding; return stdin; },
    resume: () => { flow(); return stdin; },
    pause: () => stdin,
    read: () => { const { chunk } = input; input.chunk = null; return chunk; },
    async* [Symbol.asyncIterator]() {
      const bytes = readInput();
      if (bytes !== '') yield asRead(bytes, input.encoding);
    },
  };
  class Exit { constructor(code) { this.code = code; } }
  globalThis.process = {
    argv: ['node', '/tmp/main.js'], env: {}, platform: 'wasi', version: '', versions: {}, exitCode: undefined,
    cwd: () => '/mnt/data', uptime: () => performance.now() / 1000, exit: (code = 0) => { throw new Exit(code); },
    hrtime: Object.assign(() => { const ms = now(); return [Math.floor(ms / 1000), (ms % 1000) * 1e6]; }, { bigint: () => BigInt(now()) * 1000000n }),
    stdin,
    stdout: { write: (text) => { write(1, String(text)); return true; } },
    stderr: { write: (text) => { write(2, String(text)); return true; } },
    nextTick: (act, ...parts) => { Promise.resolve().then(() => act(...parts)); },
  };

  // --- functions for the engine -----------------------------------------------------------------------------

  let state = 'over';
  let settled;
  // Promises that are rejected and not handled, each with its error.
  const unhandled = new Map();
  const uncaught = (value) => {
    try { return `Uncaught ${value instanceof Error ? errorText(value) : inspect(value)}\n`; } catch { return 'Uncaught error\n'; }
  };
  const end = (kind, value) => { if (state === 'running') { state = kind; settled = value; } };
  const hidden = {
    watch(promise) {
      state = 'running';
      cells += 1;
      // The promise of a failed cell may settle during a later cell.
      const cell = cells;
      const endThis = (kind, value) => { if (cell === cells) end(kind, value); };
      // The value is in an object of its own, so that a value that is a promise is not awaited.
      promise.then((value) => endThis('done', value), (error) => endThis('failed', error));
    },
    fail(error) { state = 'running'; cells += 1; end('failed', error); },
    rejection(promise, why, isHandled) {
      if (isHandled) unhandled.delete(promise); else unhandled.set(promise, why);
    },
    // Returns the milliseconds until the next timer, or -1 if the cell is over. All pending jobs have run, so a promise
    // that is still unhandled counts as an error.
    next() {
      for (const why of unhandled.values()) {
        if (state !== 'failed') [state, settled] = ['failed', why];
        break;
      }
      unhandled.clear();
      if (state !== 'running') return -1;
      if (pending.length === 0) { end('failed', new Error('The code waits for something that will never happen.')); return -1; }
      pending.sort((a, b) => a.at - b.at || a.id - b.id);
      const [timer] = pending;
      const left = timer.at - now();
      if (left > 0) return left;
      if (timer.every) timer.at = now() + timer.every; else pending.shift();
      try {
        timer.run();
      } catch (error) {
        // An error in a timer of an earlier cell does not end this cell.
        if (timer.cell === cells || error instanceof Exit) { end('failed', error); return -1; }
        write(2, uncaught(error));
      }
      return 0;
    },
    finish() {
      const value = settled;
      const kind = state;
      [state, settled] = ['over', undefined];
      resetInput();
      if (kind === 'failed' && value instanceof Exit) {
        tell(stringify({ code: Number(value.code) & 255 }));
        return;
      }
      if (kind === 'failed') {
        write(2, uncaught(value));
        tell(stringify({ code: 1 }));
        return;
      }
      const last = value !== null && typeof value === 'object' && 'value' in value ? value.value : value;
      let text = null;
      try { if (last !== undefined) text = inspect(last); } catch (error) { text = `[${error}]`; }
      tell(stringify({ code: process?.exitCode ? Number(process.exitCode) & 255 : 0, text }));
    },
    look() {
      const variables = [];
      let more = 0;
      for (const name of Object.getOwnPropertyNames(globalThis)) {
        if (known.has(name) || name.startsWith('_')) continue;
        if (variables.length === 500) { more += 1; continue; }
        const { value } = Object.getOwnPropertyDescriptor(globalThis, name) ?? {};
        variables.push({ name: name.slice(0, 100), summary: summary(value).slice(0, 100) });
      }
      tell(stringify({ variables, more, imports: [] }));
    },
  };
  const summary = (value) => {
    if (typeof value === 'string') return `string ${value.length}`;
    if (typeof value === 'function') return /^class\b/.test(Function.prototype.toString.call(value)) ? 'class' : 'function';
    if (value === null || typeof value !== 'object') return value === null ? 'null' : typeof value;
    try {
      if (Array.isArray(value) || ArrayBuffer.isView(value)) return `${nameOf(value)} ${value.length}`;
      if (value instanceof Map || value instanceof Set) return `${nameOf(value)} ${value.size}`;
      return nameOf(value) === 'Object' ? `Object ${Object.keys(value).length}` : nameOf(value);
    } catch { return 'object'; }
  };
  Object.defineProperty(globalThis, '__llm', { value: Object.freeze(hidden) });
  const known = new Set([...Object.getOwnPropertyNames(globalThis), '__llm_value']);
})();
