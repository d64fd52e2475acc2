// Reads the lines of a file in UTF-8, a block at a time, and refuses what is not one.

import { Problem } from "./api.js";

const START_BYTES = 1 << 20; // by which the encoding, the separator and the quotes are judged
const BLOCK_BYTES = 1 << 16;
const LONGEST_LINE = 1 << 24; // bytes; a longer one means another kind of file
// How files of other kinds begin, whose names say that they are text.
const OTHER_KINDS = {
  "PK\x03\x04": "a workbook or ZIP archive: save the sheet as CSV in UTF-8",
  "\xd0\xcf\x11\xe0": "an .xls workbook: save the sheet as CSV in UTF-8",
  "\x1f\x8b": "compressed with gzip: unpack it",
  BZh: "compressed with bzip2: unpack it",
  "\xfd7zXZ": "compressed with xz: unpack it",
  "\x28\xb5\x2f\xfd": "compressed with zstd: unpack it",
  PAR1: "Parquet: classify it with “sentiment classify”",
  "%PDF-": "a PDF document: save its text",
};
const BYTE_ORDER_MARKS = /^(\xff\xfe|\xfe\xff|\0\0\xfe\xff)/;
// What `decoded` makes of bytes that are not UTF-8, so that only the text with them fails.
const NOT_UTF8 = "\udc80";

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
const byByte = new TextDecoder("latin1"); // each byte becomes a character

export const isUtf8 = (text) => !text.includes(NOT_UTF8);

// The first lines with their ends, and whether they are the whole file.
export async function beginning(file) {
  const whole = file.size <= START_BYTES;
  const bytes = await read(file, 0, START_BYTES);
  const start = whole ? bytes : bytes.subarray(0, lineEnd(bytes) || bytes.length);
  check(file, start);
  return { lines: split(decoded(start).replace(/^\ufeff/, "")), whole };
}

// All lines with their ends, in blocks. `position` is where the next block begins, in bytes.
export async function* blocks(file) {
  let size = BLOCK_BYTES;
  for (let from = 0; from < file.size; ) {
    const bytes = await read(file, from, size);
    const end = from + bytes.length >= file.size ? bytes.length : lineEnd(bytes);
    if (end) {
      const text = decoded(bytes.subarray(0, end));
      const lines = split(from ? text : text.replace(/^\ufeff/, ""));
      from += end;
      size = BLOCK_BYTES;
      yield { lines, position: from };
    } else if (size < LONGEST_LINE) {
      size *= 2;
    } else {
      throw refused(file, "has a line of more than 16 MiB, so it is hardly a file of texts");
    }
  }
}

export const withoutEnd = (line) => line.replace(/[\r\n]+$/, "");

export const refused = (file, why) => new Problem(`${file.name} cannot be read`, `It ${why}`);

async function read(file, from, size) {
  try {
    return new Uint8Array(await file.slice(from, from + size).arrayBuffer());
  } catch {
    throw refused(file, "has changed or is gone: choose it again");
  }
}

// Where the last line ends whose end is known; after a CR, the line feed may be in the next block.
const lineEnd = (bytes) => bytes.lastIndexOf(10) + 1 || bytes.lastIndexOf(13, bytes.length - 2) + 1;

const split = (text) => text.match(/[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$/g) ?? [];

// U+FFFD may have been written as such: only a line with other bytes is decoded leniently.
function decoded(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    let from = 0;
    const lines = split(byByte.decode(bytes)).map(({ length }) => bytes.subarray(from, (from += length)));
    if (lines.length > 1) return lines.map(decoded).join("");
    return lenient.decode(bytes).replaceAll("\ufffd", NOT_UTF8);
  }
}

function check(file, start) {
  const first = String.fromCharCode(...start.subarray(0, 6));
  const encoding = otherEncoding(first, start);
  const kind = Object.keys(OTHER_KINDS).find((signature) => first.startsWith(signature));
  if (kind && (encoding || start.includes(0))) throw refused(file, `is not text, but ${OTHER_KINDS[kind]}`);
  if (encoding) throw refused(file, `is not in UTF-8, but perhaps in ${encoding}: save it as UTF-8`);
}

function otherEncoding(first, start) {
  if (BYTE_ORDER_MARKS.test(first)) return "UTF-16";
  const zeros = start.reduce((sum, byte) => sum + (byte === 0), 0);
  if (zeros > start.length / 4) return "UTF-16";
  const text = decoded(start);
  const bad = text.split(NOT_UTF8).length - 1;
  return bad > (text.match(/[^\0-\x7f]/g) ?? []).length / 2 ? "Windows-1252" : "";
}
