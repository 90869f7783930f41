// A model that follows a script, on loopback: the part of the Messages API that Claude Code needs.
//
// `script` is a list of what the model says in turn: a text, or {tool, give(results)}, where results are
// the contents of the tool results so far. Requests without tools are Claude Code's own (titles and
// such) and get a word.

import { createServer } from "node:http";

export async function startModel(script) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    if (request.method !== "POST" || !request.url.startsWith("/v1/messages")) return reply(response, 200, {});
    if (request.url.includes("count_tokens")) return reply(response, 200, { input_tokens: 100 });
    const asked = JSON.parse(body);
    requests.push(asked);
    const message = answer(asked, script);
    if (asked.stream) stream(response, message);
    else reply(response, 200, message);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const stop = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { url: `http://127.0.0.1:${server.address().port}`, requests, stop };
}

/** The contents of all tool results of a request, in order. */
export function toolResults({ messages }) {
  const blocks = messages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
  return blocks.filter(({ type }) => type === "tool_result");
}

let messages = 0;

function answer(asked, script) {
  const results = toolResults(asked);
  const line = asked.tools?.length ? script[results.length] : "OK";
  const content =
    typeof line === "string"
      ? { type: "text", text: line }
      : { type: "tool_use", id: `toolu_${results.length}`, name: line.tool, input: line.give(results) };
  return {
    id: `msg_${++messages}`,
    type: "message",
    role: "assistant",
    model: asked.model,
    content: [content],
    stop_reason: content.type === "text" ? "end_turn" : "tool_use",
    stop_sequence: null,
    usage: { input_tokens: 100, output_tokens: 10 },
  };
}

function reply(response, status, body) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

function stream(response, { content: [block], stop_reason, stop_sequence, usage, ...message }) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (type, event) => response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...event })}\n\n`);
  send("message_start", { message: { ...message, content: [], stop_reason: null, stop_sequence: null, usage } });
  const [start, delta] =
    block.type === "text"
      ? [{ type: "text", text: "" }, { type: "text_delta", text: block.text }]
      : [{ ...block, input: {} }, { type: "input_json_delta", partial_json: JSON.stringify(block.input) }];
  send("content_block_start", { index: 0, content_block: start });
  send("content_block_delta", { index: 0, delta });
  send("content_block_stop", { index: 0 });
  send("message_delta", { delta: { stop_reason, stop_sequence }, usage: { output_tokens: 10 } });
  send("message_stop", {});
  response.end();
}
