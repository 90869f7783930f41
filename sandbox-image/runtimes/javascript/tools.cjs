// The tools that the operator of a sandbox has connected, as functions. It is the same in Node and on the embedded engine.
//
//     await tools.search('contacts')                  which tools there are for something
//     await tools.list(), await tools.list('crm')     all upstreams; the tools of one
//     await tools.crm.searchContacts.help()           what a tool does and takes
//     await tools.crm.searchContacts({ query: 'x' })  a call; `tools.crm['search-contacts']` is one by its own name
//     for await (const page of tools.crm.listContacts.pages()) ...
//     await tools.weather.get('/v1/today', { params: {} })   a service over HTTP, also as tools.http.weather
//
// `make` takes two functions: `ask` sends a request (text) and promises the answer (text, or null if calls are not
// enabled), and `read` returns the bytes of a file.
'use strict';

module.exports = (ask, read) => {
  const MAX_BYTES = 1_000_000;
  const NOT_ENABLED = 'calls out of this sandbox are not enabled: its operator has connected no tools (setting `upstreams`)';
  // Maximum length of a description in a list, in characters, and number of arguments and of choices there.
  const [MAX_LINE, MAX_ARGUMENTS, MAX_CHOICES] = [100, 8, 5];
  const { parse, stringify } = JSON;
  const { defineProperty } = Object;

  // --- errors ---

  const hide = (object, fields) => {
    for (const [name, value] of Object.entries(fields)) {
      defineProperty(object, name, { value, writable: true, configurable: true });
    }
    return object;
  };

  class ToolError extends Error {
    constructor(message, kind = 'error', upstream = undefined, tool = undefined) {
      super(message);
      hide(this, { kind, upstream, tool });
    }
  }
  const classes = { ToolError };
  const byKind = {};
  for (const [name, kind] of Object.entries({
    NotEnabled: 'not_enabled',
    UnknownUpstream: 'unknown_upstream',
    UnknownTool: 'unknown_tool',
    NotAllowed: 'not_allowed',
    InvalidArguments: 'invalid_arguments',
    Denied: 'denied',
    Unanswered: 'unanswered',
    LimitReached: 'limit',
    UpstreamError: 'upstream',
    Unavailable: 'unavailable',
    Cancelled: 'cancelled',
    UnknownOutcome: 'unknown_outcome',
  })) {
    byKind[kind] = classes[name] = { [name]: class extends ToolError {} }[name];
  }
  for (const [name, made] of Object.entries(classes)) hide(made.prototype, { name });

  // The message says who said what.
  const failure = (kind, message, upstream, tool) => {
    const whose = [upstream, tool].filter(Boolean).join('.');
    const said = kind === 'upstream' ? `${upstream} says: ${message}` : message;
    return new (byKind[kind] ?? ToolError)(whose ? `${whose}: ${said}` : said, kind, upstream, tool);
  };

  // Throws errors with the stack of the call instead of this file's.
  const from = async (caller, act) => {
    const site = {};
    Error.captureStackTrace?.(site, caller);
    try {
      return await act();
    } catch (error) {
      const stack = typeof site.stack === 'string' ? site.stack.replace(/^[^\n]*(?=\n\s*at )/, '') : '';
      if (stack) hide(error, { stack: `${error.name}: ${error.message}${stack.startsWith('\n') ? '' : '\n'}${stack}` });
      throw error;
    }
  };

  // --- requests ---

  const send = async (request) => {
    const { upstream, tool } = request;
    const text = stringify(request);
    const bytes = text.length > MAX_BYTES / 4 ? unescape(encodeURIComponent(text)).length : text.length;
    if (bytes > MAX_BYTES) {
      throw failure('limit', `the arguments have ${bytes} bytes, and a call takes at most ${MAX_BYTES}`, upstream, tool);
    }
    let answer;
    try {
      answer = await ask(text);
    } catch (error) {
      throw failure('cancelled', error.message, upstream, tool);
    }
    if (answer === null) throw failure('not_enabled', NOT_ENABLED, upstream, tool);
    try {
      answer = parse(answer);
    } catch {
      throw failure('unavailable', 'the answer is not JSON', upstream, tool);
    }
    if (answer.error) throw failure(answer.error.kind, answer.error.message, upstream, tool);
    return answer;
  };

  // --- names ---

  // Names that differ only in case and marks mean the same; an exact one wins.
  const squash = (name) => name.toLowerCase().replace(/[^\p{L}\p{N}]/gu, '');
  const find = (name, names) => (names.includes(name) ? name : names.find((each) => squash(each) === squash(name)));
  const camel = (name) => {
    const made = name.replace(/[^\p{L}\p{N}$_]+/gu, '_').replace(/(?<=[^_])_+(\p{L}|\p{N})/gu, (_, next) => next.toUpperCase());
    return /^\d/.test(made) ? `_${made}` : made;
  };

  // Number of single edits between two words.
  const distance = (one, other) => {
    let row = [...other, ''].map((_, i) => i);
    [...one].forEach((char, i) => {
      let before = row[0];
      row[0] = i + 1;
      for (let j = 1; j <= other.length; j += 1) {
        const least = Math.min(row[j] + 1, row[j - 1] + 1, before + (char === other[j - 1] ? 0 : 1));
        before = row[j];
        row[j] = least;
      }
    });
    return row[other.length];
  };
  const like = (name, names) => {
    const [near] = names.map((each) => [distance(squash(name), squash(each)), each]).sort((a, b) => a[0] - b[0]);
    if (near && near[0] <= Math.ceil(name.length / 3)) return `; did you mean '${near[1]}'?`;
    return names.length === 0 ? '' : `; there are: ${names.slice(0, 30).join(', ')}${names.length > 30 ? ', ...' : ''}`;
  };

  // Lists of the server, by the upstream's name; the list of upstreams has the empty name.
  const lists = new Map();
  const entryOf = async (name, key, fetch, missing) => {
    for (let isAsked = false; ; isAsked = true) {
      if (isAsked || !lists.has(key)) {
        isAsked = true;
        lists.set(key, (await send(fetch)).value);
      }
      const entries = lists.get(key);
      const own = find(name, entries.map((entry) => entry.name));
      if (own !== undefined) return entries.find((entry) => entry.name === own);
      if (isAsked) throw missing(entries.map((entry) => camel(entry.name)));
    }
  };
  // Without the numbers of tools, for which the server would have to ask each upstream.
  const upstreamOf = (name) =>
    entryOf(name, '', { op: 'list', brief: true }, (names) =>
      failure('unknown_upstream', `there is no upstream '${name}'${like(name, names)}`, undefined, undefined));
  const toolOf = async (upstreamName, name) => {
    const { name: upstream } = await upstreamOf(upstreamName);
    const entry = await entryOf(name, upstream, { op: 'tools', upstream }, (names) =>
      failure('unknown_tool', `${upstream} has no tool '${name}'${like(name, names)}`, undefined, undefined));
    return { upstream, entry };
  };

  // --- arguments ---

  const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
  const isOf = {
    string: (value) => typeof value === 'string',
    number: (value) => typeof value === 'number',
    integer: (value) => Number.isInteger(value),
    boolean: (value) => typeof value === 'boolean',
    array: Array.isArray,
    object: isObject,
    null: (value) => value === null,
  };
  // The schemas of which a value must fit one; null if that is more than can be checked here.
  const alternatives = (schema) => {
    if (!isObject(schema) || schema.$ref || schema.allOf) return null;
    const several = schema.anyOf ?? schema.oneOf;
    if (several) {
      const found = several.map(alternatives);
      return found.includes(null) ? null : found.flat();
    }
    if (Array.isArray(schema.type)) return schema.type.map((type) => ({ ...schema, type }));
    return schema.type || schema.enum ? [schema] : null;
  };
  const fits = (value, { type }) => type === undefined || (isOf[type]?.(value) ?? true);
  const shown = (value) => String(stringify(value)).slice(0, 60);
  const check = (call, name, value, schema) => {
    const known = alternatives(schema);
    if (known === null) return;
    const fitting = known.filter((one) => fits(value, one));
    if (fitting.length === 0) {
      throw new TypeError(`${call} takes '${name}' of type ${known.map((one) => one.type).join(' or ')}, not ${shown(value)}`);
    }
    if (fitting.every((one) => one.enum && !one.enum.includes(value))) {
      const choices = fitting.flatMap((one) => one.enum);
      throw new RangeError(`${call} takes '${name}' as one of ${choices.slice(0, 30).map(shown).join(', ')}, not ${shown(value)}`);
    }
  };
  // The type of a schema's values as short text; empty if it is not known.
  const typeName = (schema) => {
    const types = (alternatives(schema) ?? []).map(({ type, enum: choices, items }) => {
      if (choices?.length > 0 && choices.length <= MAX_CHOICES) return choices.map(shown).join('|');
      const item = type === 'array' ? typeName(items) : '';
      return item && !item.includes('|') ? `${item}[]` : type;
    });
    return types.every(Boolean) ? [...new Set(types)].join('|') : '';
  };
  const stubOf = ({ name, input_schema: schema }) => {
    const properties = schema?.properties ?? {};
    const names = Object.keys(properties);
    const required = (schema?.required ?? []).filter((each) => names.includes(each));
    const more = schema?.additionalProperties;
    const isOpen = Boolean(more) || (names.length === 0 && more !== false);
    const [first] = required.length === 1 ? required : names.length === 1 ? names : [];
    // Many optional arguments are not all shown.
    const shown = [...required, ...names.filter((each) => !required.includes(each))].map((each) => {
      const [mark, type] = required.includes(each) ? ['', typeName(properties[each])] : ['?', typeName(properties[each]).replace(/\|null$/, '')];
      return `${each}${mark}${type ? `: ${type}` : ''}`;
    });
    if (shown.length > MAX_ARGUMENTS) shown.splice(Math.max(required.length, MAX_ARGUMENTS), Infinity, '…');
    const usage = shown.length > 0 ? `${name}({ ${shown.join(', ')} })` : `${name}()`;
    return { call: `${name}()`, usage, properties, names, required, isOpen, first };
  };
  const argumentsOf = ({ call, usage, properties, names, required, isOpen, first }, given) => {
    let all = {};
    const [one, more] = given;
    const wantsObject = first !== undefined && isObject(one) && (alternatives(properties[first]) ?? []).some(({ type }) => type === 'object');
    if (given.length > 2 || (given.length === 2 && (!isObject(more) || first === undefined))) {
      throw new TypeError(`${call} takes one object: ${usage}`);
    }
    if (isObject(one) && given.length === 1 && (!wantsObject || Object.keys(one).every((name) => find(name, names)))) all = one;
    else if (one !== undefined && first !== undefined) all = { [first]: one, ...more };
    else if (one !== undefined) throw new TypeError(`${call} takes one object: ${usage}`);
    const result = {};
    for (const [name, value] of Object.entries(all)) {
      const own = find(name, names);
      if (own === undefined && !isOpen) throw new TypeError(`${call} has no argument '${name}'${like(name, names)}`);
      if (value === undefined) continue;
      const plain = parse(stringify(value) ?? 'null');
      // Null stands for an argument that is not given, unless the tool takes it.
      if (plain === null && own !== undefined && !required.includes(own) && alternatives(properties[own])?.some((each) => fits(null, each)) === false) continue;
      if (own !== undefined) check(call, name, plain, properties[own]);
      result[own ?? name] = plain;
    }
    const missing = required.filter((name) => !(name in result));
    if (missing.length > 0) throw new TypeError(`${call} needs ${missing.map((name) => `'${name}'`).join(' and ')}: ${usage}`);
    return result;
  };

  // --- answers ---

  class File {
    constructor({ path, mime_type, bytes }) {
      Object.assign(this, { path, mimeType: mime_type, bytes });
    }
    read() { return read(this.path); }
    text() { return this.read().toString('utf8'); }
    json() { return parse(this.text()); }
    toString() { return this.path; }
  }
  const itemOf = (item) => (item.file ? new File(item.file) : item.value ?? null);

  // Lists of records that are shown as one line for each.
  const lineOf = (entry, upstream = entry.upstream) => {
    const name = [upstream, entry.name].filter(Boolean).map(camel).join('.');
    const usage = entry.input_schema ? stubOf(entry).usage.slice(entry.name.length) : '';
    const rights = { ask: ' [a person is asked]', denied: ' [not allowed]' }[entry.rights] ?? '';
    const count = entry.tools === undefined ? '' : ` (${entry.tools} tools)`;
    const state = entry.unavailable === undefined ? rights : ` [unavailable: ${cut(entry.unavailable)}]`;
    return `tools.${name}${usage}${count}${state}  ${cut(entry.description ?? '')}`.trimEnd();
  };
  // The first line of a text; of a long one the first words.
  const cut = (text) => {
    const line = text.trim().split('\n')[0].trim();
    if (line.length <= MAX_LINE) return line;
    const words = line.slice(0, line.lastIndexOf(' ', MAX_LINE)).replace(/[ ,;:.]+$/, '');
    return `${line.lastIndexOf(' ', MAX_LINE) > 0 ? words : line.slice(0, MAX_LINE)}…`;
  };
  const SHOWN = Symbol.for('nodejs.util.inspect.custom');
  class Entry {
    constructor(fields) { Object.assign(this, fields); }
    toString() { return lineOf(this); }
    [SHOWN]() { return this.toString(); }
  }
  class Lines extends Array {
    static get [Symbol.species]() { return Array; }
    static of(entries) { return Lines.from(entries, (entry) => new Entry(entry)); }
    toString() { return this.length === 0 ? 'nothing found' : this.join('\n'); }
    [SHOWN]() { return this.toString(); }
  }

  const help = async (upstreamName, name) => {
    const { upstream, entry } = await toolOf(upstreamName, name);
    const { properties, names, required } = stubOf(entry);
    const lines = names.map((each) => {
      const kind = (alternatives(properties[each]) ?? [{}]).map(({ type }) => type ?? 'value').join(' or ');
      const choices = properties[each]?.enum ? ` one of ${properties[each].enum.slice(0, 30).map(shown).join(', ')}.` : '';
      const text = (properties[each]?.description ?? '').trim().replace(/\s+/g, ' ');
      return `    ${each} (${kind}${required.includes(each) ? ', required' : ''}):${choices} ${text}`.trimEnd().replace(/:$/, '');
    });
    const head = lineOf({ ...entry, description: '' }, upstream);
    return [head, (entry.description ?? '').trim(), ...(lines.length ? ['Arguments:', ...lines] : [])].filter(Boolean).join('\n');
  };

  // --- tools ---

  const call = async (upstreamName, name, given) => {
    const { upstream, entry } = await toolOf(upstreamName, name);
    const args = argumentsOf(stubOf(entry), given);
    try {
      const { items = [] } = await send({ op: 'call', upstream, tool: entry.name, arguments: args });
      return items.length === 1 ? itemOf(items[0]) : items.length === 0 ? null : items.map(itemOf);
    } catch (error) {
      // The upstream may have changed.
      if (['unknown_tool', 'unknown_upstream', 'invalid_arguments'].includes(error.kind)) lists.clear();
      throw error;
    }
  };
  const NEXT = /^next_?(cursor|page_?token|token|page)?$/i;
  const CURSOR = /^((next_?)?(cursor|page_?token|token|page)|starting_?after|after)$/i;
  async function* pages(upstream, name, given) {
    const { entry } = await toolOf(upstream, name);
    const stub = stubOf(entry);
    const argument = stub.names.find((each) => CURSOR.test(each));
    if (argument === undefined) throw new TypeError(`${entry.name}() has no argument for a cursor: its answer has no further pages`);
    const seen = new Set();
    for (let args = argumentsOf(stub, given); ; ) {
      const page = await call(upstream, name, [args]);
      yield page;
      const keys = isObject(page) ? Object.keys(page).filter((key) => NEXT.test(key)) : [];
      const cursor = keys.map((key) => page[key]).find((value) => value && ['string', 'number'].includes(typeof value));
      if (cursor === undefined || seen.has(cursor)) return;
      seen.add(cursor);
      args = { ...args, [argument]: cursor };
    }
  }

  // An object whose members are made when they are used. Names that every object is asked for are none of its members:
  // an object with `then` would be taken for a promise.
  const members = (target, make) =>
    new Proxy(target, {
      get(object, name) {
        if (typeof name !== 'string' || name in object || name === 'then' || name === 'toJSON') return object[name];
        return make(name);
      },
    });
  const tool = (upstream, name) => {
    const act = { [name]: (...given) => from(act, () => call(upstream, name, given)) }[name];
    return hide(act, {
      help: () => from(act.help, () => help(upstream, name)),
      pages: (...given) => pages(upstream, name, given),
    });
  };
  class Upstream {}
  class Upstreams {}
  const upstream = (name) => members(new Upstream(), (each) => tool(name, each));
  const own = hide(new Upstreams(), {
    ...classes,
    File,
    upstream,
    http: members(new Upstreams(), upstream),
    search: (query, limit = 20) =>
      from(own.search, async () => {
        const { value: found } = await send({ op: 'search', query: String(query), limit });
        // The arguments of a tool are in the list of its upstream, which a call needs as well.
        for (const upstream of new Set(found.map((entry) => entry.upstream))) {
          if (lists.has(upstream)) continue;
          try {
            lists.set(upstream, (await send({ op: 'tools', upstream })).value);
          } catch (error) {
            if (!(error instanceof ToolError)) throw error;
          }
        }
        const known = ({ upstream, name }) => lists.get(upstream)?.find((entry) => entry.name === name);
        return Lines.of(found.map((entry) => ({ ...entry, ...known(entry) })));
      }),
    list: (name) =>
      from(own.list, async () => {
        if (name === undefined) return Lines.of((await send({ op: 'list' })).value);
        const { name: upstream } = await upstreamOf(String(name));
        const { value: entries } = await send({ op: 'tools', upstream });
        return Lines.of(entries.map((entry) => ({ upstream, ...entry })));
      }),
  });
  return members(own, upstream);
};
