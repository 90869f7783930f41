// Chromium, driven over a pipe: the DevTools protocol is JSON with a NUL after each message.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PATIENCE_MS = 60_000;
const KEYS = { Tab: 9, Enter: 13, Escape: 27, ArrowLeft: 37, ArrowRight: 39 };

/** Rejects what never comes. */
export function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`never: ${what}`)), PATIENCE_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export class Chromium {
  #calls = new Map();
  #last = 0;
  #listeners = new Set();

  static async start(program) {
    const browser = new Chromium();
    browser.profile = await mkdtemp(join(tmpdir(), "llm-sandbox-chromium-"));
    const flags = [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
      "--remote-debugging-pipe", `--user-data-dir=${browser.profile}`,
    ];
    browser.process = spawn(program, flags, {
      stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
    });
    browser.ended = new Promise((resolve) => browser.process.on("exit", resolve));
    browser.process.on("error", () => {});
    browser.input = browser.process.stdio[3];
    browser.input.on("error", () => {});
    browser.#read(browser.process.stdio[4]);
    await browser.call("Browser.setDownloadBehavior", { behavior: "deny", eventsEnabled: true });
    return browser;
  }

  async #read(pipe) {
    let rest = "";
    pipe.setEncoding("utf8");
    for await (const text of pipe) {
      const messages = (rest + text).split("\0");
      rest = messages.pop();
      for (const message of messages) this.#take(JSON.parse(message));
    }
  }

  #take(message) {
    if (message.id === undefined) {
      for (const listener of this.#listeners) listener(message);
      return;
    }
    const { resolve, reject } = this.#calls.get(message.id);
    this.#calls.delete(message.id);
    if (message.error) reject(new Error(message.error.message));
    else resolve(message.result);
  }

  call(method, params = {}, sessionId = undefined) {
    const id = ++this.#last;
    const answer = new Promise((resolve, reject) => this.#calls.set(id, { resolve, reject }));
    this.input.write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    return within(answer, method);
  }

  listen(listener) {
    this.#listeners.add(listener);
  }

  /** A new, empty page. */
  async page() {
    const { targetId } = await this.call("Target.createTarget", { url: "about:blank" });
    const attached = await this.call("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, targetId, attached.sessionId);
    for (const domain of ["Page", "DOM", "Log", "Runtime", "Network"]) await page.call(`${domain}.enable`);
    await page.call("Page.setLifecycleEventsEnabled", { enabled: true });
    return page;
  }

  async close() {
    this.call("Browser.close").catch(() => {});
    await within(this.ended, "the browser's end").catch(() => this.process.kill("SIGKILL"));
    await rm(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

class Page {
  /** Names of files that were saved instead of shown. */
  downloads = [];
  /** Messages of the browser, such as that it blocked a script. */
  log = [];
  /** Addresses that were asked for. */
  requests = [];
  /** How often a script has changed an attribute. */
  changes = 0;
  #waiting = [];
  #quiet = new Set();

  constructor(browser, target, session) {
    Object.assign(this, { browser, target, session });
    browser.listen(({ method, params, sessionId }) => {
      // The browser reports downloads, and one page is used at a time.
      if (method === "Browser.downloadWillBegin") this.downloads.push(params.suggestedFilename);
      if (sessionId !== session && method !== "Browser.downloadWillBegin") return;
      if (method === "Log.entryAdded") this.log.push(params.entry.text);
      if (method === "Runtime.exceptionThrown") this.log.push(params.exceptionDetails.text);
      if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
      if (method === "DOM.attributeModified") this.changes += 1;
      if (method === "Page.lifecycleEvent" && params.name === "networkIdle") {
        this.#quiet.add(params.loaderId);
      }
      this.#waiting = this.#waiting.filter((check) => !check());
    });
  }

  call(method, params) {
    return this.browser.call(method, params, this.session);
  }

  until(holds, what) {
    const held = new Promise((resolve) => {
      const check = () => holds() && (resolve(), true);
      if (!check()) this.#waiting.push(check);
    });
    return within(held, what);
  }

  /** Opens an address and waits until its document has loaded and rests, or has been saved. */
  async open(url) {
    const { loaderId, errorText } = await this.call("Page.navigate", { url });
    if (errorText === "net::ERR_ABORTED") {
      await this.until(() => this.downloads.length > 0, `a download of ${url}`);
    } else if (errorText) {
      throw new Error(`${url}: ${errorText}`);
    } else {
      await this.until(() => this.#quiet.has(loaderId), `the rest of ${url}`);
    }
  }

  /** Every attribute of every element of all documents of the page, read past its scripts. */
  async attributes() {
    const { root } = await this.call("DOM.getDocument", { depth: -1, pierce: true });
    const found = [];
    const visit = (node) => {
      const list = node.attributes ?? [];
      for (let i = 0; i < list.length; i += 2) found.push([list[i], list[i + 1]]);
      for (const child of node.children ?? []) visit(child);
      if (node.contentDocument) visit(node.contentDocument);
    };
    visit(root);
    return found;
  }

  /** Looks like this from now on: its size in pixels, and light or dark. */
  async looks({ width = 1280, height = 900, scheme = "light" }) {
    const size = { width, height, deviceScaleFactor: 1, mobile: false };
    await this.call("Emulation.setDeviceMetricsOverride", size);
    const features = [{ name: "prefers-color-scheme", value: scheme }];
    await this.call("Emulation.setEmulatedMedia", { features });
  }

  /** Opens an address whose page goes on asking for news, and so never rests. */
  async visit(url) {
    const { errorText } = await this.call("Page.navigate", { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
  }

  /** The value of an expression in the page, as JSON. */
  async value(expression) {
    const asked = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.call("Runtime.evaluate", asked);
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? expression);
    return result.value;
  }

  /** Waits until an expression holds in the page, and gives its value. */
  async eventually(expression) {
    for (const end = Date.now() + PATIENCE_MS; Date.now() < end; ) {
      // The page may be on its way to another address.
      const value = await this.value(expression).catch(() => null);
      if (value) return value;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`never: ${expression}`);
  }

  /** Presses a key, as a person without a mouse would. */
  async press(key) {
    const text = { Enter: "\r" }[key];
    // The browser drops keys that come before the page is painted.
    await this.eventually(`performance.getEntriesByType("paint").length > 0`);
    await this.call("Input.dispatchKeyEvent", { type: "keyDown", key, code: key, text, windowsVirtualKeyCode: KEYS[key] });
    await this.call("Input.dispatchKeyEvent", { type: "keyUp", key, code: key, windowsVirtualKeyCode: KEYS[key] });
  }

  /** Types into what has the focus. */
  type(text) {
    return this.call("Input.insertText", { text });
  }

  /** A picture of what is seen, as PNG. */
  async picture() {
    const { data } = await this.call("Page.captureScreenshot", { format: "png" });
    return Buffer.from(data, "base64");
  }

  /** Clicks a link in the upper left corner, and waits until it has acted or has been blocked. */
  async click() {
    // The browser reports changes only for a document that was requested before.
    await this.attributes();
    const [changes, log] = [this.changes, this.log.length];
    const at = { x: 20, y: 20, button: "left", clickCount: 1 };
    await this.call("Input.dispatchMouseEvent", { type: "mousePressed", ...at });
    await this.call("Input.dispatchMouseEvent", { type: "mouseReleased", ...at });
    await this.until(() => this.changes > changes || this.log.length > log, "what the click does");
  }

  async close() {
    await this.browser.call("Target.closeTarget", { targetId: this.target });
  }
}
