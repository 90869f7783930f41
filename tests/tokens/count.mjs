// Tokens of what a model is given. The tokenizers ship their ranks in their packages: nothing is asked for
// over a network.

import { getTokenizer } from "@anthropic-ai/tokenizer";
import { encode } from "gpt-tokenizer/encoding/o200k_base";

const claude = getTokenizer();

/** By name: OpenAI's newest that is published, and the only one that Anthropic has published, of Claude 2. */
export const TOKENIZERS = {
  o200k_base: (text) => encode(text).length,
  "Claude 2": (text) => claude.encode(text.normalize("NFKC"), "all").length,
};

// Parts of results that are random or depend on the clock, and their characters. Another draw is a few tokens more or
// less, so that one alone would make the same result cost more today than it did yesterday.
const RANDOM = [
  [/sess_([0-9a-f]{12})\b/g, "0123456789abcdef"],
  [/run_\d{8}T\d{6}Z_([0-9a-f]{4})\b/g, "0123456789abcdef"],
  [/signature=\d+-([0-9a-f]{32})\b/g, "0123456789abcdef"],
  [/(?:signature=|~)([A-Za-z0-9_-]{28})(?![A-Za-z0-9_-])/g, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"],
  [/127\.0\.0\.1:(\d{4,5})\b/g, "123456789"],
];
const TIMED = [
  [/run_\d{8}T\d{6}Z/g, "run_20260214T091538Z"],
  [/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ/g, "2026-02-14T09:15:38Z"],
  [/"duration_ms":\d+/g, '"duration_ms":123'],
  [/"execution_time_ms":[\d.]+/g, '"execution_time_ms":1.23'],
  [/"memory_used_bytes":\d+/g, '"memory_used_bytes":123456789'],
  [/127\.0\.0\.1:\d+/g, "127.0.0.1:45678"],
];
const DRAWS = 25;

/** The same numbers each time (mulberry32). */
function numbers(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The text with everything random drawn again; what was the same stays the same. */
function redrawn(text, next) {
  const drawn = new Map();
  for (const [pattern, alphabet] of RANDOM) {
    text = text.replaceAll(pattern, (whole, value) => {
      if (!drawn.has(value)) {
        drawn.set(value, Array.from(value, () => alphabet[Math.floor(next() * alphabet.length)]).join(""));
      }
      return whole.slice(0, whole.length - value.length) + drawn.get(value);
    });
  }
  return text;
}

/** Tokens by each tokenizer: the median of some draws. */
export function tokens(text) {
  for (const [pattern, fixed] of TIMED) text = text.replaceAll(pattern, fixed);
  const next = numbers(1);
  const draws = Array.from({ length: DRAWS }, () => redrawn(text, next));
  return Object.values(TOKENIZERS).map((count) => {
    // The long ones hold little that is random.
    const some = text.length > 20_000 ? draws.slice(0, 5) : draws;
    return some.map(count).sort((a, b) => a - b)[some.length >> 1];
  });
}

/** The cost of a picture in tokens: width times height, divided by 750. */
export function ofPicture({ data, mimeType }) {
  const bytes = Buffer.from(data, "base64");
  const [width, height] = mimeType === "image/png" ? [bytes.readUInt32BE(16), bytes.readUInt32BE(20)] : ofJpeg(bytes);
  return Math.ceil((width * height) / 750);
}

function ofJpeg(bytes) {
  for (let at = 2; ; at += 2 + bytes.readUInt16BE(at + 2)) {
    const marker = bytes[at + 1];
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) {
      return [bytes.readUInt16BE(at + 7), bytes.readUInt16BE(at + 5)];
    }
  }
}
