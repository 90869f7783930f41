// Stands between n8n and the server, changes nothing, and remembers who sent what: the answers of the
// workflows are compared with what the server served while the session lived.

import { createServer, request } from "node:http";

async function whole(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}

export class Recorder {
  /** Exchanges in the order of their answers: {method, path, token, sent, status, type, got}. */
  exchanges = [];

  static async start(server) {
    const recorder = new Recorder();
    recorder.listener = createServer((incoming, outgoing) => recorder.#pass(server, incoming, outgoing));
    await new Promise((done) => recorder.listener.listen(0, "127.0.0.1", done));
    recorder.url = `http://127.0.0.1:${recorder.listener.address().port}`;
    return recorder;
  }

  async #pass(server, incoming, outgoing) {
    const to = new URL(incoming.url, server);
    const headers = { ...incoming.headers, host: to.host };
    const onward = request(to, { method: incoming.method, headers });
    onward.on("error", () => outgoing.destroy());
    outgoing.on("close", () => onward.destroy());
    const sent = whole(incoming).catch(() => undefined);
    incoming.pipe(onward);
    onward.on("response", async (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
      const got = await whole(answer).catch(() => undefined);
      this.exchanges.push({
        method: incoming.method,
        path: to.pathname,
        search: to.search,
        token: incoming.headers.authorization,
        sent: await sent,
        status: answer.statusCode,
        type: answer.headers["content-type"],
        got,
      });
    });
  }

  /** Names of all sessions that files were put to. */
  get sessions() {
    const puts = this.exchanges.filter(({ method, status }) => method === "PUT" && status < 300);
    return [...new Set(puts.map(({ path }) => path.split("/")[2]))];
  }

  /** The session whose data.csv this was. */
  sessionOf(csv) {
    const puts = this.exchanges.filter(({ method, sent }) => method === "PUT" && sent?.equals(csv));
    return puts.at(-1)?.path.split("/")[2];
  }

  /** The file as it was served. */
  served(session, name) {
    return this.exchanges.find(({ method, path }) => method === "GET" && path === `/files/${session}/${name}`);
  }

  stop() {
    this.listener.closeAllConnections();
    return new Promise((done) => this.listener.close(done));
  }
}
