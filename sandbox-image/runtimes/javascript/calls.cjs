// Gives programs and cells in Node the global `tools` (tools.cjs), whose requests go to the agent's socket. Nothing is
// loaded before its first use.
'use strict';

const MAX_PARALLEL = 8;
const MAX_BYTES = 1_000_000;
const LOST = 'the connection was closed before the answer came; the call may have been made';

// Connections without a call, calls that wait for one, and the number of calls with a connection.
let idle = [];
const waiting = [];
let active = 0;

// Opens a connection. `carry` makes a call on it; between calls it does not keep the program from ending.
const connect = () => {
  const net = require('node:net');
  const socket = net.connect(`\0${process.env.SANDBOX_TOOLS ?? 'llm-sandbox-tools'}`);
  let call = null;
  let isConnected = false;
  let received = [];
  let size = 0;
  const end = (settle, value) => {
    const ended = call;
    call = null;
    ended?.[settle](value);
  };
  const connection = {
    socket,
    carry: (bytes) =>
      new Promise((resolve, reject) => {
        call = { resolve, reject };
        const length = Buffer.alloc(4);
        length.writeUInt32LE(bytes.length);
        socket.ref();
        socket.write(Buffer.concat([length, bytes]));
      }),
  };
  socket.on('connect', () => { isConnected = true; });
  socket.on('data', (chunk) => {
    received.push(chunk);
    size += chunk.length;
    if (size < 4) return;
    const all = received.length === 1 ? chunk : Buffer.concat(received);
    received = [all];
    const length = all.readUInt32LE(0);
    if (length > MAX_BYTES || call === null) socket.destroy();
    else if (size >= 4 + length) {
      received = [];
      size = 0;
      socket.unref();
      idle.push(connection);
      end('resolve', all.toString('utf8', 4, 4 + length));
    }
  });
  socket.on('error', () => {});
  socket.on('close', () => {
    idle = idle.filter((other) => other !== connection);
    // Nobody listens at the socket of a sandbox without calls.
    if (isConnected) end('reject', new Error(LOST));
    else end('resolve', null);
  });
  return connection;
};

const ask = async (text) => {
  if (active === MAX_PARALLEL) await new Promise((go) => waiting.push(go));
  else active += 1;
  try {
    return await (idle.pop() ?? connect()).carry(Buffer.from(text));
  } finally {
    // The next call takes the place.
    if (waiting.length > 0) waiting.shift()();
    else active -= 1;
  }
};

let made;
const tools = () => (made ??= require('./tools.cjs')(ask, (path) => require('node:fs').readFileSync(path)));

Object.defineProperty(globalThis, 'tools', {
  __proto__: null,
  configurable: true,
  get: tools,
  set: (value) => {
    Object.defineProperty(globalThis, 'tools', { __proto__: null, value, configurable: true, enumerable: true, writable: true });
  },
});

// Closes the connections of an earlier run, which the agent has closed on its side. Called before each cell, and earlier
// cells may have taken the array's iterator away.
module.exports = () => {
  for (let i = 0; i < idle.length; i += 1) idle[i].socket.destroy();
  idle = [];
};
