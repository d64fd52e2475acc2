// A file of texts: it is chosen or dropped, its columns are shown, and its rows are classified.

import { Problem, patiently, sameModel, stream } from "./api.js";
import { $, advance, say, show, waits } from "./panel.js";
import { Table, download } from "./table.js";
import { ResultColumns, open } from "./tables.js";
import { bytes, count, details, duration, element, milliseconds } from "./view.js";

const SAMPLE = 3; // texts
const REQUESTS = 3; // at a time: one is computed while others are sent and read
const FIRST_ROWS = 50; // so that the first results appear soon
const MOST_ROWS = 500;
const MOST_CHARACTERS = 500_000;

export let table; // the rows of the chosen file; undefined while the texts are in the box

// Shows a file with its columns and first texts, in the place of the box.
export async function choose(file, column) {
  table = await open(file);
  if (column !== undefined) table.column = column;
  swap(true);
  $("file-name").textContent = file.name;
  $("file-form").textContent = `${bytes(file.size)}, ${table.form}`;
  $("column").replaceChildren(...table.columns.map((name) => new Option(name, name)));
  $("column").value = table.column;
  $("column-field").hidden = !table.allColumns.length;
  await chooseColumn();
  $("file-name").focus();
}

export async function chooseColumn() {
  table.column = $("column").value;
  const texts = (await table.sample(table.column)).slice(0, SAMPLE);
  const items = texts.map((text) => element("li", { dir: "auto", textContent: text.slice(0, 200) }));
  $("sample").replaceChildren(...items);
}

export function leave() {
  table = undefined;
  swap(false);
}

function swap(isFile) {
  for (const part of document.querySelectorAll("[data-for]")) {
    part.hidden = (part.dataset.for === "file") !== isFile;
  }
}

// Results are shown while the file is read. What is finished can be saved at any time. `signal`
// returns the one of now, because rows are opened after the end, too.
export async function classifyFile(model, overflow, signal) {
  const { file } = table;
  const parts = [];
  const save = () => download(parts, file.name.replace(/(\.\w+)$/, "-labelled$1"));
  const rows = new Table((...row) => details(...row, signal()), save);
  rows.element.querySelector(".save").textContent = "Download with labels";
  const footer = element("p", { className: "note" });
  const started = performance.now();
  let done = 0;
  let doubtful;
  advance(0, "0 texts");
  for await (const found of label(table, model, { model: model.name, overflow }, signal())) {
    parts.push(found.part);
    if (!found.rows.length) continue;
    if (!done) show(rows.element, footer);
    rows.add(found.rows, { labels: model.labels, model });
    done += found.rows.length;
    doubtful ??= found.rows.find((row) => row.doubtful);
    const elapsed = performance.now() - started;
    const left = (elapsed * (file.size - found.position)) / found.position;
    advance(found.position / file.size, count(done, "text") + (left > 2_000 ? `, ${duration(left)} left` : ""));
    const rate = count(Math.round(done / (elapsed / 1_000)), "text");
    const doubt = doubtful
      ? ` Line ${doubtful.number}: a cell in quotes has ${doubtful.lines} lines, each of which could be a row.`
      : "";
    footer.textContent = `${count(done, "text")} in ${milliseconds(elapsed)}, ${rate}/s.${doubt}`;
  }
  if (!done) throw new Problem("Nothing to classify", "The file has no rows");
  say(`${count(done, "text")} classified`);
  return count(done, "text");
}

// Sends a few requests at a time. Yields rows with their results, and the part of the labelled file
// that they are. Nothing is kept here, so memory does not grow with the file.
async function* label(table, model, options, signal) {
  const columns = new ResultColumns(model, table.allColumns);
  const ended = new AbortController();
  const running = [];
  let digest;
  const finished = async () => {
    const { rows, position, answer } = await running.shift();
    digest = sameModel(answer.digest, digest, "file");
    const results = answer.results.values();
    const done = rows.map((row) => ({ ...row, result: row.error ? { error: row.error } : results.next().value }));
    const written = done.map((row) => table.line(row, row.result, columns)).join("");
    return { rows: done, position, part: new Blob([written]) };
  };
  const send = async ({ rows, position }) => {
    const texts = rows.filter(({ error }) => !error).map(({ text }) => text);
    const either = AbortSignal.any([signal, ended.signal]);
    const request = () => stream(texts, options, either);
    const answer = texts.length ? await patiently(request, either, waits) : { results: [] };
    return { rows, position, answer };
  };
  try {
    yield { rows: [], position: 0, part: new Blob([table.header(columns)]) };
    for await (const chunk of chunks(table)) {
      const request = send(chunk);
      request.catch(() => {}); // it is awaited in its turn
      running.push(request);
      if (running.length === REQUESTS) yield await finished();
    }
    while (running.length) yield await finished();
  } finally {
    ended.abort();
  }
}

async function* chunks(table) {
  let rows = [];
  let characters = 0;
  let most = FIRST_ROWS;
  for await (const row of table.rows(table.column)) {
    rows.push(row);
    characters += row.text?.length ?? 0;
    if (rows.length === most || characters > MOST_CHARACTERS) {
      yield { rows, position: table.position };
      [rows, characters, most] = [[], 0, MOST_ROWS];
    }
  }
  if (rows.length) yield { rows, position: table.position };
}
