// Passes connections on to several addresses in turn, and knows nothing of what goes over them.
//
//   node round_robin.mjs <host:port>...     prints the address that it listens on

import { connect, createServer } from "node:net";

const servers = process.argv.slice(2).map((address) => new URL(`tcp://${address}`));
let next = 0;

createServer({ allowHalfOpen: true }, (near) => {
  const { hostname, port } = servers[next++ % servers.length];
  const far = connect({ host: hostname, port: Number(port), allowHalfOpen: true, noDelay: true });
  near.setNoDelay(true);
  near.pipe(far).pipe(near);
  // Whichever breaks off breaks off both.
  near.on("error", () => far.destroy()).on("close", () => far.destroy());
  far.on("error", () => near.destroy()).on("close", () => near.destroy());
}).listen(0, "127.0.0.1", function () {
  console.log(`127.0.0.1:${this.address().port}`);
});
