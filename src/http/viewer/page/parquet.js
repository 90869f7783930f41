// Parquet: the columns and the number of rows, from the footer of a file, and the first rows of columns without nesting
// that are not compressed, or by Snappy or gzip.

/** A larger footer is not read, nor a larger column of the first rows. */
const FOOTER_BYTES = 4 << 20;
const COLUMN_BYTES = 8 << 20;
const DEPTH = 100;
const PARQUET_COLUMNS = 30;
const PARQUET_ROWS = 50;

const PHYSICAL = ["boolean", "int32", "int64", "int96", "float", "double", "bytes", "fixed bytes"];
const CONVERTED = ["text", "map", "map", "list", "enum", "decimal", "date", "time", "time", "timestamp ms", "timestamp µs", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "json", "bson", "interval"];
const CODECS = ["none", "Snappy", "gzip", "LZO", "Brotli", "LZ4", "Zstandard", "LZ4"];

/** A reader of bytes: Thrift's compact protocol, and the numbers of Parquet's pages. */
class Reader {
  constructor(bytes) {
    Object.assign(this, { bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.length), at: 0, depth: 0 });
  }

  byte() {
    if (this.at >= this.bytes.length) throw new Error("it ends early");
    return this.bytes[this.at++];
  }

  take(length) {
    if (length < 0 || this.at + length > this.bytes.length) throw new Error("it ends early");
    return this.bytes.subarray(this.at, (this.at += length));
  }

  /** A number of up to 53 bits; larger ones are not exact. */
  varint() {
    let [value, scale] = [0, 1];
    for (;;) {
      const byte = this.byte();
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
  }

  zigzag() {
    const value = this.varint();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  }

  #value(type) {
    switch (type) {
      case 1: return true;
      case 2: return false;
      case 3: return this.byte();
      case 4: case 5: case 6: return this.zigzag();
      case 7: return (this.at += 8, null);
      case 8: return this.take(this.varint());
      case 9: case 10: return this.#list();
      case 12: return this.struct();
      default: throw new Error("an unknown type");
    }
  }

  #list() {
    const head = this.byte();
    const length = head >> 4 === 15 ? this.varint() : head >> 4;
    if (length > this.bytes.length) throw new Error("it ends early");
    const [type, items] = [head & 15, []];
    for (let i = 0; i < length; i += 1) items.push(type === 1 || type === 2 ? this.byte() === 1 : this.#value(type));
    return items;
  }

  /** The fields of a structure, by their numbers. */
  struct() {
    if ((this.depth += 1) > 32) throw new Error("it is nested too deeply");
    const fields = {};
    for (let id = 0; ; ) {
      const head = this.byte();
      if (head === 0) break;
      id = head >> 4 ? id + (head >> 4) : this.zigzag();
      fields[id] = this.#value(head & 15);
    }
    this.depth -= 1;
    return fields;
  }

  /** Numbers of `width` bits in runs and groups (the RLE and bit-packing hybrid). */
  hybrid(width, most) {
    const values = [];
    while (values.length < most && this.at < this.bytes.length) {
      const head = this.varint();
      if (head % 2) {
        const packed = this.take(Math.min(((head - 1) / 2) * width, this.bytes.length - this.at));
        const all = width ? Math.floor((packed.length * 8) / width) : most;
        for (let i = 0; i < all && values.length < most; i += 1) {
          let value = 0;
          for (let bit = 0; bit < width; bit += 1) {
            const place = i * width + bit;
            value += ((packed[place >> 3] >> (place & 7)) & 1) * 2 ** bit;
          }
          values.push(value);
        }
      } else {
        let value = 0;
        for (let i = 0; i < Math.ceil(width / 8); i += 1) value += this.byte() * 256 ** i;
        for (let i = 0; i < head / 2 && values.length < most; i += 1) values.push(value);
      }
    }
    return values;
  }
}

function unsnappy(bytes) {
  const from = new Reader(bytes);
  const size = from.varint();
  if (size > COLUMN_BYTES) throw new Error("too large");
  const to = new Uint8Array(size);
  for (let at = 0; at < size; ) {
    const tag = from.byte();
    let length = (tag >> 2) + 1;
    if ((tag & 3) === 0) {
      if (length > 60) length = from.take(length - 60).reduceRight((sum, byte) => sum * 256 + byte, 0) + 1;
      to.set(from.take(length), at);
      at += length;
      continue;
    }
    let back;
    if ((tag & 3) === 1) [length, back] = [((tag >> 2) & 7) + 4, (tag >> 5) * 256 + from.byte()];
    else back = from.take((tag & 3) === 2 ? 2 : 4).reduceRight((sum, byte) => sum * 256 + byte, 0);
    if (back < 1 || back > at) throw new Error("damaged");
    for (let i = 0; i < length && at < size; i += 1, at += 1) to[at] = to[at - back];
  }
  return to;
}

async function unpackedPage(bytes, codec) {
  if (codec === 0) return bytes;
  if (codec === 1) return unsnappy(bytes);
  if (codec === 2) return inflated(bytes, "gzip", COLUMN_BYTES);
  throw new Error("an unknown compression");
}

const utf8 = (bytes) => new TextDecoder().decode(bytes);

/** The columns without nesting, in order: their schema and where their first values are. */
function parquetColumns(footer) {
  const [, ...schema] = footer[2];
  const chunks = new Map((footer[4][0]?.[1] ?? []).map((chunk) => [chunk[3]?.[3]?.map(utf8).join("."), chunk[3]]));
  const columns = [];
  // The list is the tree in the order of its elements, each with the number of its children.
  const visit = (path, isNested) => {
    const element = schema.shift();
    if (!element) return;
    if (path.length > DEPTH) throw new Error("too deep");
    const name = [...path, utf8(element[4])];
    for (let i = 0; i < (element[5] ?? 0) && schema.length; i += 1) visit(name, true);
    if (!element[5]) {
      const isFlat = !isNested && element[3] !== 2;
      columns.push({ name: name.join("."), element, isFlat, chunk: chunks.get(name.join(".")) });
    }
  };
  while (schema.length) visit([], false);
  return columns;
}

function typeName({ element, isFlat }) {
  const timestamp = element[10]?.[8];
  const base = timestamp ? "timestamp" : CONVERTED[element[6]] ?? PHYSICAL[element[1]] ?? "";
  return isFlat ? base : `${base} (nested)`;
}

/** How a value of a column is shown. */
function shownAs({ element }, value) {
  if (value === null || value === undefined) return "";
  const [physical, converted, logical] = [element[1], element[6], element[10] ?? {}];
  const moment = (ms) => (Number.isFinite(ms) && Math.abs(ms) < 8.64e15 ? new Date(ms).toISOString().replace("T", " ").replace(/(\.000)?Z$/, "") : String(value));
  const unit = logical[8]?.[2];
  if (converted === 6 || logical[6]) return moment(Number(value) * 86_400_000).slice(0, 10);
  if (unit) return moment(Number(value) / (unit[1] ? 1 : unit[2] ? 1e3 : 1e6));
  if (converted === 9) return moment(Number(value));
  if (converted === 10) return moment(Number(value) / 1e3);
  if (physical === 3) return moment((Number(value.getBigUint64(0, true)) / 1e6) + (value.getUint32(8, true) - 2440588) * 86_400_000);
  if (converted === 5 || logical[5]) {
    const whole = value instanceof Uint8Array ? value.reduce((sum, byte) => sum * 256n + BigInt(byte), value[0] > 127 ? -1n : 0n) : BigInt(value);
    return String(Number(whole) / 10 ** (element[7] ?? logical[5]?.[1] ?? 0));
  }
  if (value instanceof Uint8Array) return converted === 0 || converted === 19 || converted === 4 || logical[1] ? utf8(value) : `${value.length} bytes`;
  return String(value);
}

/** Values that are stored one after the other. */
function plainValues(reader, { element }, most) {
  const number = (length, read) => {
    const part = reader.take(length);
    return read(new DataView(part.buffer, part.byteOffset, length));
  };
  const one = [
    null,
    () => number(4, (view) => view.getInt32(0, true)),
    () => number(8, (view) => view.getBigInt64(0, true)),
    () => number(12, (view) => view),
    () => number(4, (view) => Number(view.getFloat32(0, true).toPrecision(7))),
    () => number(8, (view) => Number(view.getFloat64(0, true).toPrecision(15))),
    () => reader.take(number(4, (view) => view.getUint32(0, true))),
    () => reader.take(element[2]),
  ][element[1]];
  if (!(element[1] >= 0 && element[1] < 8) || (element[1] === 7 && !(element[2] > 0))) throw new Error("an unknown type");
  const values = [];
  most = Math.min(most, reader.bytes.length * 8);
  for (let i = 0; i < most && one && reader.at < reader.bytes.length; i += 1) values.push(one());
  for (let i = 0; i < most && !one; i += 1) values.push(((reader.bytes[reader.at + (i >> 3)] >> (i & 7)) & 1) === 1);
  return values;
}

/** The first values of a column: of its first page with data. */
async function firstValues(file, column, most) {
  const meta = column.chunk;
  const [codec, size, data, dictionaryAt] = [meta[4], meta[7], meta[9], meta[11]];
  const from = dictionaryAt > 0 && dictionaryAt < data ? dictionaryAt : data;
  if (size > COLUMN_BYTES * 4) throw new Error("too large");
  const { content } = await bytes(file, from, from + Math.min(size, COLUMN_BYTES));
  const reader = new Reader(new Uint8Array(content));
  let dictionary = [];
  for (;;) {
    const page = reader.struct();
    const packed = reader.take(page[3]);
    if (page[1] === 2) {
      const unpacked = new Reader(await unpackedPage(packed, codec));
      dictionary = plainValues(unpacked, column, page[7][1]);
      continue;
    }
    const isOptional = column.element[3] === 1;
    let [levels, values, header] = [[], null, page[5]];
    if (page[1] === 0) {
      values = new Reader(await unpackedPage(packed, codec));
      if (isOptional) {
        const length = values.view.getUint32(0, true);
        values.at = 4;
        levels = new Reader(values.take(length)).hybrid(1, Math.min(most, header[1]));
      }
    } else if (page[1] === 3) {
      header = page[8];
      header[2] = header[4];
      const ahead = header[5] + header[6];
      levels = isOptional ? new Reader(packed.subarray(header[6], ahead)).hybrid(1, Math.min(most, header[1])) : [];
      const rest = packed.subarray(ahead);
      values = new Reader(header[7] === false ? rest : await unpackedPage(rest, codec));
    } else throw new Error("an unknown page");
    if (!isOptional) levels = Array(Math.min(most, header[1])).fill(1);
    const wanted = levels.reduce((sum, level) => sum + level, 0);
    let found;
    if ([2, 8].includes(header[2])) found = new Reader(values.bytes.subarray(values.at + 1)).hybrid(values.bytes[values.at], wanted).map((at) => dictionary[at]);
    else if (header[2] === 0) found = plainValues(values, column, wanted);
    else throw new Error("an unknown encoding");
    let next = 0;
    return levels.map((level) => (level ? found[next++] : null));
  }
}

async function parquet(file) {
  const end = (await bytes(file, file.size_bytes - 8, file.size_bytes)).content;
  const length = new DataView(end).getUint32(0, true);
  if (utf8(end.slice(4)) !== "PAR1" || length > FOOTER_BYTES) return null;
  const start = file.size_bytes - 8 - length;
  const footer = new Reader(new Uint8Array((await bytes(file, start, start + length)).content)).struct();
  const columns = parquetColumns(footer);
  const most = Math.min(PARQUET_ROWS, footer[3]);
  const shown = columns.filter((column) => column.isFlat && column.chunk).slice(0, PARQUET_COLUMNS);
  const read = await Promise.all(shown.map((column) => firstValues(file, column, most).then((values) => values.map((value) => shownAs(column, value)), () => null)));
  const known = shown.filter((_, at) => read[at]).map(({ name }) => legible(name));
  const values = read.filter(Boolean);
  const longest = Math.max(0, ...values.map((each) => each.length));
  const first = Array.from({ length: longest }, (_, row) => values.map((column) => column[row] ?? ""));
  const codecs = [...new Set(columns.map(({ chunk }) => CODECS[chunk?.[4]] ?? "none"))].join(", ");
  return el(
    "div",
    { className: "prose" },
    el("p", {}, `${count(footer[3], "row")}, ${count(columns.length, "column")}, compression: ${codecs}`),
    first.length ? el("h3", {}, `First ${count(first.length, "row")}`) : null,
    first.length ? wide(table([known, ...first], PARQUET_COLUMNS)) : null,
    el("h3", {}, "Columns"),
    wide(table([["name", "type"], ...columns.map((column) => [legible(column.name), typeName(column)])], 2)),
  );
}
