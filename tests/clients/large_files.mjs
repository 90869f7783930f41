// Files of the sizes at which a message ends to fit: some clients refuse one of more than 1 MiB. What is larger comes in
// parts, and pictures are scaled down.

import { equal, ok } from "./check.mjs";
import { answerOf, download, pngSize } from "./job.mjs";

const [BASE64, PICTURE] = [350_000, 700_000];
const FILES = [
  { name: "some.bin", size: Math.floor(BASE64 * 0.77) },
  { name: "largest.bin", size: BASE64 },
  { name: "larger.bin", size: BASE64 + 1 },
  { name: "huge.bin", size: 9_000_000 },
  { name: "largest.png", size: PICTURE },
  { name: "larger.png", size: PICTURE + 1, scaled: true },
];
// A picture of any number of bytes: an ignored chunk fills it up to its size.
const MAKE_FILES = `
import os, struct, zlib
def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
def png(size):
    head = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 400, 300, 8, 2, 0, 0, 0))
    lines = b"".join(b"\\0" + os.urandom(1200) for _ in range(300))
    tail = chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")
    return head + chunk(b"juNk", os.urandom(size - len(head) - len(tail) - 12)) + tail
for name, size in ${JSON.stringify(FILES.map(({ name, size }) => [name, size]))}:
    with open(name, "wb") as file:
        file.write(png(size) if name.endswith(".png") else os.urandom(size))
`;

export async function largeFiles(client, say) {
  let session_id;
  let artifacts = [];
  await say("a run makes large files", async () => {
    await client.listTools();
    const give = { code: MAKE_FILES, inline_images: 0 };
    [{ session_id, artifacts }] = answerOf(await client.callTool("run_python", give));
    equal(artifacts.length, FILES.length);
  });
  for (const { filename: name, size_bytes, download_url } of artifacts) {
    const { scaled, size } = FILES.find((file) => file.name === name);
    const read = (more) => client.callTool("read_artifact", { session_id, path: name, ...more });
    const served = Buffer.from(await (await download(download_url)).arrayBuffer());
    if (name.endsWith(".bin")) {
      await say(`of ${size} bytes of ${name} the kind is told, and as much comes as was asked for`, async () => {
        const [told] = answerOf(await read());
        ok(told.kind && told.advice && !("content_base64" in told), JSON.stringify(told));
        // If URLs are signed, each is valid from the time at which it was made.
        equal(told.download_url.split("?")[0], download_url.split("?")[0]);
        const [answer] = answerOf(await read({ format: "base64", length: BASE64 }));
        const content = Buffer.from(answer.content_base64, "base64");
        ok(content.equals(served.subarray(0, BASE64)), `${content.length} bytes came`);
        equal([answer.size_bytes, answer.next_offset], [size_bytes, size > BASE64 ? BASE64 : undefined]);
      });
    } else if (scaled) {
      await say(`a picture of ${size} bytes is made smaller`, async () => {
        const [answer, images] = answerOf(await read());
        const picture = Buffer.from(images[0].data, "base64");
        ok(picture.length <= PICTURE, `${picture.length} bytes came`);
        equal(answer.size_bytes, size);
      });
    } else {
      await say(`${size} bytes of ${name} arrive whole`, async () => {
        const [, images] = answerOf(await read());
        const content = Buffer.from(images[0].data, "base64");
        ok(content.equals(served), `${content.length} bytes came`);
        equal(pngSize(content), [400, 300]);
      });
    }
  }
  await say("the connection outlives the large messages", async () => {
    answerOf(await client.callTool("close_session", { session_id }));
  });
}
