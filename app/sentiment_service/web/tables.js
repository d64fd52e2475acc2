// Tables of texts in files, as docs/files.md has them: CSV, TSV, a text in each line, JSON lines.
// Each kind reads its rows, and writes them with their results, as `sentiment classify` does.

import { beginning, blocks, isUtf8, refused, withoutEnd } from "./lines.js";

const SEPARATORS = { csv: ",", tsv: "\t" };
const OTHER_SEPARATORS = [",", "\t", ";", "|"];
const NAMES = { ",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars" };
const MAYBE_UNQUOTED = ["\t", "|"]; // many programs that write these write a quote like any character
const UNCLOSED = "unexpected end of data";
const LONGEST_CELL = 1 << 24;
const SAMPLE = 50; // rows
const MOST_SAMPLED = 20; // columns
const SHOWN = 200; // characters of a line that cannot be read

// Opens a file and checks its beginning. `columns` are those that may have the texts; `column` is
// the one that is called so, or the one with the longest values.
export async function open(file) {
  const ending = /\.(\w+)$/.exec(file.name.toLowerCase())?.[1];
  const kind = { csv: Delimited, tsv: Delimited, txt: Lines, jsonl: JsonLines, ndjson: JsonLines }[ending];
  if (!kind) throw refused(file, "has another ending than .csv, .tsv, .txt, .jsonl and .ndjson");
  const table = new kind(file, ending);
  await table.begin(await beginning(file));
  table.column = table.columns.find((name) => name.trim().toLowerCase() === "text");
  if (table.column === undefined) {
    let most = -1;
    for (const column of table.columns.slice(0, MOST_SAMPLED)) {
      const { length } = (await table.sample(column)).join("");
      if (length > most) [table.column, most] = [column, length];
    }
  }
  return table;
}

// The columns that results add, beside columns with the names `taken`.
export class ResultColumns {
  constructor({ labels, multi_label: multiLabel }, taken) {
    const sentiment = labels.filter((label) => label !== "neutral").sort().join() === "negative,positive";
    this.labels = labels;
    this.taken = taken;
    this.members = [...(sentiment ? ["polarity"] : []), ...(multiLabel ? ["labels"] : []), "warnings"];
    this.names = free(["label", "score", ...labels.map((label) => `score_${label}`), ...this.members, "error"], taken);
    this.jsonNames = free(["label", "score", "scores", ...this.members, "error"], taken);
  }

  values = (result) => [
    ...[result.label, result.score, ...this.labels.map((label) => result.scores?.[label])],
    ...this.members.map((name) => result[name] && (name === "polarity" ? result[name] : JSON.stringify(result[name]))),
    errorText(result),
  ];

  // `names` are those in the row; the first rows, by which names are chosen, may lack some.
  json(result, names) {
    const members = ["label", "score", "scores", ...this.members].map((name) => result[name] ?? null);
    const values = [...members, errorText(result) ?? null];
    const taken = names.some((name) => this.jsonNames.includes(name.toLowerCase()));
    const added = taken ? free(this.jsonNames, [...this.taken, ...names]) : this.jsonNames;
    return JSON.stringify(Object.fromEntries(added.map((name, index) => [name, values[index]])));
  }
}

const errorText = ({ error }) => error && `${error.code}: ${error.message}`;

// For Spark and SQL databases, "Label" is "label".
function free(names, taken) {
  const lower = taken.map((name) => name.toLowerCase());
  return names.map((name) => {
    while (lower.includes(name.toLowerCase())) name = `predicted_${name}`;
    lower.push(name.toLowerCase());
    return name;
  });
}

// A line of a CSV file (RFC 4180).
export const csvLine = (cells, separator = ",") =>
  `${cells.map((cell) => quoted(String(cell ?? ""), separator)).join(separator)}\n`;

const quoted = (cell, separator) =>
  cell.includes(separator) || /["\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;

class Table {
  position = 0; // bytes that have been read

  constructor(file, ending) {
    Object.assign(this, { file, ending });
  }

  // The first texts of a column.
  async sample(column) {
    const texts = [];
    for await (const { text } of this.rows(column)) {
      if (text?.trim() && texts.push(text) === SAMPLE) break;
    }
    return texts;
  }

  async *lines() {
    for await (const { lines, position } of blocks(this.file)) {
      this.position = position;
      yield* lines;
    }
  }
}

class Lines extends Table {
  columns = ["text"];
  allColumns = [];
  form = "a text in each line";

  begin() {}

  async *rows() {
    let number = 0;
    for await (const line of this.lines()) yield checked({ number: ++number, text: withoutEnd(line) });
  }

  header = () => "";

  line({ text }, result) {
    const shown = text.replace(/\s+/g, " ").trim();
    return result.error
      ? `error\t${result.error.code}\t${shown}\n`
      : `${result.label}\t${result.score.toFixed(4)}\t${shown}\n`;
  }
}

class JsonLines extends Table {
  form = "a JSON object in each line";

  begin({ lines }) {
    const members = lines.flatMap((line) => Object.entries(parsed(line) ?? {}));
    const names = (chosen) => [...new Set(chosen.map(([name]) => name))];
    this.allColumns = names(members);
    this.columns = names(members.filter(([, value]) => typeof value === "string"));
    if (!this.columns.length) throw refused(this.file, "has no line with a JSON object that has a text");
  }

  async *rows(column) {
    let number = 0;
    for await (const line of this.lines()) {
      number += 1;
      if (!line.trim()) continue;
      const object = parsed(line);
      const text = object?.[column];
      const row = { number, json: object ? line.trim() : "{}", names: Object.keys(object ?? {}) };
      if (typeof text === "string") yield checked({ ...row, text });
      else if (!object) yield failed(row, "invalid_request", `is not a JSON object: ${JSON.stringify(line.slice(0, SHOWN))}`);
      else if (text == null) yield failed(row, "empty_text", `has no “${column}”`);
      else yield failed(row, "invalid_request", `“${column}” is not text`);
    }
  }

  header = () => "";

  // The row's members are copied as text, so that numbers keep all digits.
  line({ json, names }, result, columns) {
    const members = json.slice(1, -1).trim();
    return `{${members && `${members}, `}${columns.json(result, names).slice(1)}\n`;
  }
}

function parsed(line) {
  try {
    const value = JSON.parse(line);
    return typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

// Values with a header, separated by what the ending says, or by what gives the header more columns.
class Delimited extends Table {
  async begin({ lines, whole }) {
    const usual = SEPARATORS[this.ending];
    const named = /^"?sep=(.)"?\s*$/i.exec(lines[0] ?? "")?.[1];
    const rest = named ? lines.slice(1) : lines;
    this.separator = named ?? usual;
    let header = await firstRow(rest, this.separator);
    if (!header) throw refused(this.file, "is empty: it must begin with the names of its columns");
    for (const other of named || header.cells.length > 1 ? [] : OTHER_SEPARATORS) {
      const row = await firstRow(rest, other);
      if (row.cells.length > header.cells.length) [this.separator, header] = [other, row];
    }
    this.strict = !MAYBE_UNQUOTED.includes(this.separator);
    if (header.fault && this.strict) throw refused(this.file, `begins with names of columns that ${advice(header)}`);
    const twice = header.cells.find((name, index) => header.cells.indexOf(name) < index);
    if (twice !== undefined) throw refused(this.file, `has several columns “${twice}”: give each its own name`);
    this.columns = this.allColumns = header.cells;
    this.first = lines.length - rest.length + header.number - 1 + header.lines; // lines before the rows
    this.quotes = this.strict || (await this.quotesFit(lines.slice(this.first), whole));
    const rule = this.quotes ? "" : ", quotes are characters";
    this.form = `${count(header.cells.length)}, separated by ${NAMES[this.separator] ?? this.separator}${rule}`;
  }

  // Unless the lines are the whole file, a quote may be closed in a later line.
  async quotesFit(lines, whole) {
    for await (const { fault } of readRows(lines, this.separator, this.columns.length)) {
      if (fault && (whole || fault !== UNCLOSED)) return false;
    }
    return true;
  }

  async *rows(column) {
    const lines = this.lines();
    for (let skipped = 0; skipped < this.first; skipped += 1) await lines.next();
    const width = this.columns.length;
    const place = this.columns.indexOf(column);
    for await (const row of readRows(lines, this.separator, width, this.quotes)) {
      row.number += this.first;
      const found = row.cells.length;
      if (row.fault && this.strict) failed(row, "invalid_request", `the row ${advice(row)}`);
      else if (found === width) checked(Object.assign(row, { text: row.cells[place] }));
      else failed(row, "invalid_request", `the header has ${count(width)}, but this row has ${found}`);
      const filled = [...row.cells, ...Array(Math.max(0, width - found)).fill("")];
      // Surplus cells are part of the last one, so that nothing is lost.
      row.cells = [...filled.slice(0, width - 1), filled.slice(width - 1).join(this.separator)];
      yield row;
    }
  }

  header = (columns) => csvLine([...this.columns, ...columns.names], SEPARATORS[this.ending]);

  line = ({ cells }, result, columns) => csvLine([...cells, ...columns.values(result)], SEPARATORS[this.ending]);
}

const count = (columns) => `${columns} column${columns === 1 ? "" : "s"}`;

const advice = ({ fault }) =>
  `cannot be read (${fault}): a quote that begins a cell must end it, and quotes inside must be doubled`;

function failed(row, code, why) {
  return Object.assign(row, { error: { code, message: `line ${row.number}: ${why}` } });
}

const checked = (row) =>
  isUtf8(row.text) ? row : failed(row, "invalid_request", "the text is not UTF-8");

const firstRow = async (lines, separator) => (await readRows(lines, separator).next()).value;

// Each row that is not blank. A cell that begins with a quote ends with the next one that is not
// doubled; separators and line ends may be between them. If something else follows, or there is no
// other quote, the row has a fault and ends with its line: what followed is read as rows.
// Behind tabs and bars, a cell of several lines that could be rows is a fault, too, and so is one in
// a row of other than `width` cells. Elsewhere it is doubtful.
async function* readRows(lines, separator, width = 0, quotes = true) {
  const source = lines[Symbol.asyncIterator]?.() ?? lines[Symbol.iterator]();
  const waiting = []; // lines that a faulty quote had taken; the next one is the last
  const next = async () => waiting.pop() ?? (await source.next()).value;
  let line;
  for (let number = 1; (line = await next()) !== undefined; ) {
    const row = { number, cells: withoutEnd(line).split(separator), lines: 1, fault: "" };
    if (quotes && line.includes('"')) {
      const taken = [];
      const more = async () => {
        const another = await next();
        if (another !== undefined) taken.push(another);
        return another;
      };
      const { cells, fault } = await quotedCells(line, separator, more);
      const torn = !fault && taken.length > 0 && tears(cells, separator, width);
      row.fault = fault || (torn && MAYBE_UNQUOTED.includes(separator) ? "the quote would take the next rows" : "");
      if (row.fault) while (taken.length) waiting.push(taken.pop());
      else Object.assign(row, { cells, lines: 1 + taken.length, doubtful: torn });
    }
    number += row.lines;
    if (withoutEnd(line)) yield row;
  }
}

async function quotedCells(line, separator, more) {
  const cells = [];
  for (let at = 0; ; at += 1) {
    if (line[at] !== '"') {
      const end = line.indexOf(separator, at);
      cells.push(end < 0 ? withoutEnd(line.slice(at)) : line.slice(at, end));
      if (end < 0) return { cells };
      at = end;
      continue;
    }
    let cell = "";
    for (at += 1; ; ) {
      const quote = line.indexOf('"', at);
      if (quote < 0) {
        cell += line.slice(at);
        line = await more();
        if (line === undefined || cell.length > LONGEST_CELL) return { fault: UNCLOSED };
        at = 0;
      } else if (line[quote + 1] === '"') {
        cell += line.slice(at, quote + 1);
        at = quote + 2;
      } else {
        cell += line.slice(at, quote);
        at = quote + 1;
        break;
      }
    }
    cells.push(cell);
    if (!withoutEnd(line.slice(at))) return { cells };
    if (line[at] !== separator) return { fault: `“${separator}” expected after a quote` };
  }
}

// Whether a cell has lines that could be rows: with the separators of a row's end, middle and begin.
function tears(cells, separator, width) {
  if (cells.length !== (width || cells.length)) return true;
  return cells.some((cell, index) => {
    const found = cell.split(/\r\n|\r|\n/).map((line) => line.split(separator).length - 1);
    const most = cells.length - 1;
    return (
      found.length > 1 &&
      found.every((separators, line) => {
        const needed = line === 0 ? most - index : line === found.length - 1 ? index : most;
        return separators >= needed;
      })
    );
  });
}
