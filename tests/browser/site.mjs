// The server under test with files in it, and a site that passes them on with headers left out: what
// the browser does without a header shows what the header is for, and that the test would notice.
import http from "node:http";

import { Stdio } from "../server.mjs";
import { within } from "./chromium.mjs";

/** The server, its sandboxes plain processes: where files come from makes no difference here. */
export class Server extends Stdio {
  static start(binary) {
    return super.start(binary, {}, ["--no-isolation"]);
  }

  request(method, params) {
    return within(super.request(method, params), method);
  }

  /** The answer of a call, which must succeed. */
  async call(tool, args) {
    const { isError, content, structuredContent } = await super.call(tool, args);
    if (isError) throw new Error(`${tool}: ${JSON.stringify(content)}`);
    return structuredContent;
  }

  /** Uploads files and gives their addresses by name. */
  async publish(files) {
    const session_id = "browser";
    for (const { name, content } of files) {
      const content_base64 = Buffer.from(content).toString("base64");
      await this.call("upload_file", { session_id, filename: name, content_base64 });
    }
    const { artifacts, download_url_template: any } = await this.call("list_artifacts", { session_id });
    const named = (filename) => any.replace("{filename}", encodeURI(filename));
    return new Map(artifacts.map(({ filename, download_url }) => [filename, download_url ?? named(filename)]));
  }
}

/** Serves `/<mode>/<name>`: the file with the headers that the mode leaves; and `/page` as it is told. */
export async function site(urls) {
  const without = {
    nothing: [],
    disposition: ["content-disposition"],
    protection: ["content-disposition", "content-security-policy", "x-content-type-options"],
  };
  const site = { page: "" };
  const listener = http.createServer((request, response) => {
    const [, mode, name] = request.url.split("/");
    if (mode === "page") {
      response.setHeader("content-type", "text/html");
      response.end(site.page);
      return;
    }
    const url = urls.get(name);
    if (!without[mode] || !url) {
      response.writeHead(404).end();
      return;
    }
    http.get(url, (original) => {
      const headers = { ...original.headers };
      for (const header of without[mode]) delete headers[header];
      response.writeHead(original.statusCode, headers);
      original.pipe(response);
    });
  });
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  site.url = `http://127.0.0.1:${listener.address().port}`;
  site.close = () => listener.close();
  return site;
}
