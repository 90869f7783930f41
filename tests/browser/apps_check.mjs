// The view of a session as an MCP App, in a real browser within the reference host of the extension. Usage:
// node apps_check.mjs <server binary> <chromium>
import { createServer } from "node:http";
import { resolve } from "node:path";

import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { AppBridge, getToolUiResourceUri } from "@modelcontextprotocol/ext-apps/app-bridge";

import { Chromium } from "./chromium.mjs";
import { check, conclude, equal } from "./report.mjs";

const [binary, chromium] = process.argv.slice(2);
const MIME = "text/html;profile=mcp-app";
// The policy of a host for a document that declares no domains.
const POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'none'";
const HOST = `<!doctype html><meta charset="utf-8"><title>host</title>
<iframe sandbox="allow-scripts" src="/app" style="width: 100%; height: 860px; border: 0"></iframe>
<script>
addEventListener("message", ({ data, source }) => {
  if (source === frames[0]) heard(JSON.stringify(data));
});
</script>`;
const HOSTILE = "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>";
const ANALYSIS = `
import base64, csv, pathlib
hostile = ${JSON.stringify(HOSTILE)}
rows = [("region", "sales", "note"), ("North", 10, "a, b"), ("South", 9, hostile), ("West", 200, 'say "c"')]
with open("sales.csv", "w", newline="") as file:
    csv.writer(file).writerows(rows)
dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
pathlib.Path("dot.png").write_bytes(base64.b64decode(dot))
pathlib.Path("report.pdf").write_bytes(b"%PDF-1.4")
print("three regions", hostile)
`;

/** The document, its host, and the pipe between them. */
class Shown {
  static async open(browser, client, tool, html) {
    const shown = new Shown();
    shown.server = createServer((request, response) => {
      const isApp = request.url === "/app";
      const headers = { "Content-Type": "text/html; charset=utf-8" };
      if (isApp) headers["Content-Security-Policy"] = POLICY;
      response.writeHead(200, headers).end(isApp ? html : HOST);
    });
    await new Promise((listening) => shown.server.listen(0, "127.0.0.1", listening));
    shown.page = await browser.page();
    const transport = {
      start: async () => {},
      close: async () => {},
      send: (message) => shown.page.value(`frames[0].postMessage(${JSON.stringify(message)}, "*")`),
    };
    await shown.page.call("Runtime.addBinding", { name: "heard" });
    browser.listen(({ method, params, sessionId }) => {
      if (method !== "Runtime.bindingCalled" || sessionId !== shown.page.session) return;
      transport.onmessage?.(JSON.parse(params.payload));
    });
    const abilities = { serverResources: {}, downloadFile: {} };
    const context = { hostContext: { theme: "dark", toolInfo: { tool } } };
    shown.bridge = new AppBridge(client, { name: "host", version: "1" }, abilities, context);
    shown.saved = [];
    shown.sizes = [];
    shown.bridge.ondownloadfile = async ({ contents }) => { shown.saved.push(contents[0]); return {}; };
    shown.bridge.onsizechange = (size) => shown.sizes.push(size);
    const ready = new Promise((initialized) => { shown.bridge.oninitialized = initialized; });
    await shown.bridge.connect(transport);
    // The browser runs the document in a process of its own.
    shown.log = [];
    shown.requests = [];
    browser.listen(({ method, params, sessionId }) => {
      if (method === "Target.attachedToTarget" && sessionId === shown.page.session) shown.#attach(params.sessionId);
      if (sessionId !== shown.frame) return;
      if (method === "Log.entryAdded") shown.log.push(params.entry.text);
      if (method === "Runtime.exceptionThrown") shown.log.push(params.exceptionDetails.text);
      if (method === "Network.requestWillBeSent") shown.requests.push(params.request.url);
    });
    await shown.page.call("Target.setAutoAttach", { autoAttach: true, waitForDebuggerOnStart: true, flatten: true });
    await shown.page.visit(`http://127.0.0.1:${shown.server.address().port}/`);
    await ready;
    return shown;
  }

  async #attach(session) {
    this.frame = session;
    const { browser } = this.page;
    for (const domain of ["Runtime", "Log", "Network"]) await browser.call(`${domain}.enable`, {}, session);
    await browser.call("Runtime.runIfWaitingForDebugger", {}, session);
  }

  async result(args, result) {
    await this.bridge.sendToolInput({ arguments: args });
    await this.bridge.sendToolResult(result);
  }

  /** The value of an expression in the document. */
  async value(expression) {
    const asked = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.page.browser.call("Runtime.evaluate", asked, this.frame);
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? expression);
    return result.value;
  }

  async eventually(expression) {
    for (const end = Date.now() + 20_000; Date.now() < end; ) {
      const value = await this.value(expression);
      if (value) return value;
      await new Promise((later) => setTimeout(later, 30));
    }
    throw new Error(`never: ${expression}; the document has: ${await this.value("document.body.innerText")}`);
  }

  async press(label) {
    const found = await this.eventually(`[...document.querySelectorAll("button")].some((it) => it.textContent.startsWith(${JSON.stringify(label)}))`);
    equal(found, true, label);
    await this.value(`[...document.querySelectorAll("button")].find((it) => it.textContent.startsWith(${JSON.stringify(label)})).click()`);
  }

  async close() {
    await this.bridge.teardownResource({});
    await this.page.close();
    this.server.close();
  }
}

const capabilities = { extensions: { "io.modelcontextprotocol/ui": { mimeTypes: [MIME] } } };
const client = new Client({ name: "host", version: "1" }, { capabilities });
const env = { ...process.env, SANDBOX_HTTP_PORT: "0", SANDBOX_LOG_FILE: "", SANDBOX_LOG_LEVEL: "ERROR", SANDBOX_POOL_SIZE: "0" };
await client.connect(new StdioClientTransport({ command: resolve(binary), args: ["--no-isolation"], env }));
const browser = await Chromium.start(chromium);
try {
  const { tools } = await client.listTools();
  const tool = tools.find(({ name }) => name === "run_python");
  const uri = getToolUiResourceUri(tool);
  const { contents } = await client.readResource({ uri });
  const args = { code: ANALYSIS };
  const result = await client.callTool({ name: "run_python", arguments: args });
  const shown = await Shown.open(browser, client, tool, contents[0].text);
  await check("the host offers the document that the tool names", async () => {
    equal([contents[0].mimeType, contents[0]._meta.ui.csp], [MIME, {}], "document");
  });
  await check("a result is shown with its outcome, output and chart", async () => {
    await shown.result(args, result);
    await shown.eventually(`document.querySelector("header .state")?.textContent === "ok"`);
    equal(await shown.value(`document.querySelector("pre").textContent.startsWith("three regions")`), true, "output");
    await shown.eventually(`document.querySelector("img[alt='dot.png']")?.naturalWidth === 1`);
  });
  await check("a table is read through the host, and sorted by its numbers", async () => {
    await shown.press("sales.csv");
    await shown.eventually(`document.querySelectorAll("tbody tr").length === 3`);
    const column = () => shown.value(`[...document.querySelectorAll("tbody tr")].map((it) => it.children[1].textContent)`);
    equal(await column(), ["10", "9", "200"], "as in the file");
    await shown.value(`[...document.querySelectorAll("th button")].find((it) => it.textContent === "sales").click()`);
    equal(await column(), ["9", "10", "200"], "ascending");
    await shown.value(`[...document.querySelectorAll("th button")].find((it) => it.textContent === "sales").click()`);
    equal(await column(), ["200", "10", "9"], "descending");
  });
  await check("the runs of the session are read through the host", async () => {
    await client.callTool({ name: "run_python", arguments: { code: "# a comment\n1 / 0", session_id: result.structuredContent.session_id } });
    await shown.press("Runs of this session");
    const titles = await shown.eventually(`document.querySelectorAll("details").length === 2 && [...document.querySelectorAll("summary")].map((it) => it.textContent)`);
    equal(titles[0].startsWith("python: 1 / 0 (error, "), true, titles[0]);
    equal(await shown.value(`document.querySelector("details .bad")?.closest("details").textContent.includes("ZeroDivisionError")`), true, "the reason");
  });
  await check("a file that cannot be shown is given to the host", async () => {
    await shown.press("Save report.pdf");
    await shown.eventually(`document.body.textContent.includes("report.pdf: given to the client.")`);
    equal(shown.saved.map(({ type, name }) => [type, name]), [["resource_link", "report.pdf"]], "saved");
  });
  await check("texts of a sandbox are never markup", async () => {
    equal(await shown.value(`document.title`), "Sandbox", "title");
    equal(await shown.value(`document.querySelectorAll("main script, img[src=x]").length`), 0, "elements");
  });
  await check("the document asks no address, and breaks no rule of the host", async () => {
    const own = `http://127.0.0.1:${shown.server.address().port}/`;
    const others = [...shown.page.requests, ...shown.requests].filter((url) => !url.startsWith(own) && !url.startsWith("data:"));
    equal(others, [], "addresses");
    equal([...shown.page.log, ...shown.log], [], "messages");
  });
  await check("the host learns how large the document is", async () => {
    equal(shown.sizes.some(({ height }) => height > 100), true, JSON.stringify(shown.sizes));
  });
  await check("the document looks as the host does", async () => {
    equal(await shown.value("getComputedStyle(document.documentElement).colorScheme"), "dark", "colours");
  });
  await check("an error is shown with its text", async () => {
    const failed = await client.callTool({ name: "run_python", arguments: { code: "1", language: "ruby" } });
    await shown.result({}, failed);
    await shown.eventually(`document.querySelector("header .bad")?.textContent === "error"`);
    equal(await shown.value(`document.querySelector("pre").textContent.includes("Only Python runs here")`), true, "text");
  });
  await shown.close();
} finally {
  await browser.close();
  await client.close();
}
conclude();
