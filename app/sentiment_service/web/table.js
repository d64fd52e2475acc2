// The answers to many texts: their summary, and a row for each text. The user sorts them by a click on
// a column's title, shows only one label or only texts that contain something, opens rows, and saves
// the rows that are shown.

import { Summary } from "./summary.js";
import { ResultColumns, csvLine } from "./tables.js";
import { count, element, labelsOf, named, percent, toned } from "./view.js";

const SHOWN = 100; // rows at first
const MORE = 500; // rows with each click
const KEPT = 1_000; // rows of a file, and as many of its errors
// What each column is sorted by.
const ORDERS = [
  (a, b) => named(a.result).localeCompare(named(b.result)),
  (a, b) => (a.result.score ?? -1) - (b.result.score ?? -1),
  (a, b) => a.text.localeCompare(b.text),
];
const pen = document.createElement("canvas").getContext("2d");
const DIRECTIONS = { none: "ascending", ascending: "descending", descending: "none" };

export class Table {
  element = document.getElementById("many").content.cloneNode(true).firstElementChild;
  #body = this.element.querySelector("tbody");
  #titles = [...this.element.querySelectorAll("th")];
  #search = this.element.querySelector("[type=search]");
  #more = this.element.querySelector(".more");
  #summary = new Summary(() => this.#arrange());
  #rows = []; // each with its text, result and answer, in the order of the texts
  #elements = new Map(); // element of a shown row → its row
  #errors = 0;
  #shown = SHOWN;

  // `details` returns what an open row shows. `save` saves all rows; without it, those that are
  // shown are saved, and all are kept.
  constructor(details, save) {
    this.keepsAll = !save;
    this.#search.before(this.#summary.element);
    this.#body.addEventListener("click", (event) => this.#toggle(event.target.closest("tr"), details));
    this.#body.addEventListener("keydown", (event) => this.#move(event));
    for (const title of this.#titles) {
      title.firstElementChild.addEventListener("click", () => this.#sort(title));
    }
    this.#search.addEventListener("input", () => this.#arrange());
    this.#more.addEventListener("click", () => this.#showMore());
    this.element.querySelector(".save").addEventListener("click", save ?? (() => this.#save()));
  }

  // Adds the next rows, each with its text, its result and, in a file, the number of its line.
  add(rows, answer) {
    for (const { text = "", result, number: line } of rows) {
      const alike = result.error ? this.#errors : this.#rows.length - this.#errors;
      if (!this.keepsAll && alike >= KEPT) continue;
      this.#rows.push({ text, line, result, answer });
      this.#errors += Boolean(result.error);
    }
    this.#summary.add(rows, answer.labels);
    this.element.style.setProperty("--longest", Math.max(...answer.labels.map(width)));
    this.element.querySelector("h2").textContent = count(this.#summary.total, "text");
    const left = this.#summary.total - this.#rows.length;
    const note = `The table has the first ${count(this.#rows.length - this.#errors, "text")} and ${count(this.#errors, "error")}; the file has all.`;
    this.element.querySelector(".note").textContent = left ? note : "";
    this.#fill();
  }

  #element(row) {
    const { text, line, result, answer } = row;
    const made = document.getElementById("row").content.firstElementChild.cloneNode(true);
    const [labelCell, score] = made.cells;
    labelCell.textContent = named(result);
    score.textContent = result.error ? "–" : percent(result.score);
    button(made).textContent = text.slice(0, 300) || "–"; // one line is visible, so a long text is cut
    if (result.error) {
      const { message } = result.error;
      const where = line && !message.startsWith("line ") ? `line ${line}: ` : "";
      button(made).after(element("small", { textContent: where + message }));
    }
    toned(made, labelsOf(result)[0], answer.labels);
    this.#elements.set(made, row);
    return made;
  }

  // The first click sorts the rows, the second reverses them, the third restores their order.
  #sort(title) {
    const direction = DIRECTIONS[title.ariaSort ?? "none"];
    for (const other of this.#titles) other.ariaSort = "none";
    title.ariaSort = direction;
    this.#arrange();
  }

  // The rows that the filters let through, in the chosen order.
  #chosen() {
    const { pressed } = this.#summary;
    const wanted = this.#search.value.trim().toLowerCase();
    const chosen = this.#rows.filter(
      ({ text, result }) =>
        (pressed === undefined || labelsOf(result).includes(pressed)) && text.toLowerCase().includes(wanted),
    );
    const column = this.#titles.find((title) => (title.ariaSort ?? "none") !== "none");
    if (!column) return chosen;
    const order = ORDERS[this.#titles.indexOf(column)];
    const sign = column.ariaSort === "ascending" ? 1 : -1;
    return chosen.sort((a, b) => sign * order(a, b));
  }

  // Shows the chosen rows anew.
  #arrange() {
    this.#body.replaceChildren();
    this.#elements.clear();
    this.#fill();
  }

  // Adds what is missing of the rows that should be shown, and removes those beyond. An open row and
  // the one with the focus stay, and none is moved, which would take its focus.
  #fill() {
    const chosen = this.#chosen();
    const held = [...this.#body.querySelectorAll("tr:focus-within, tr:has(+ .details)")];
    const ends = held.map((made) => chosen.indexOf(this.#elements.get(made)) + 1);
    this.#shown = Math.max(this.#shown, ...ends);
    let at = this.#body.firstElementChild;
    for (const row of chosen.slice(0, this.#shown)) {
      if (this.#elements.get(at) === row) at = beside(at, "nextElementSibling");
      else this.#body.insertBefore(this.#element(row), at);
    }
    while (this.#elements.size > this.#shown) {
      this.#elements.delete(this.#body.lastElementChild);
      this.#body.lastElementChild.remove();
    }
    this.#stop(this.#body.querySelector("button[tabindex='0']") ?? this.#body.querySelector("button"));
    this.#more.hidden = this.#elements.size >= chosen.length;
  }

  #showMore() {
    const last = this.#body.lastElementChild;
    this.#shown += MORE;
    this.#fill();
    if (last.nextElementSibling) this.#focus(last.nextElementSibling);
  }

  #save() {
    const chosen = this.#chosen();
    const { labels } = this.#rows[0].answer;
    const multiLabel = this.#rows.some(({ result }) => "labels" in result);
    const columns = new ResultColumns({ labels, multi_label: multiLabel }, ["text"]);
    const lines = chosen.map(({ text, result }) => csvLine([text, ...columns.values(result)]));
    download([csvLine(["text", ...columns.names]), ...lines], "sentiment.csv");
  }

  #toggle(row, details) {
    if (!this.#elements.has(row)) return;
    const closed = this.#close();
    this.#focus(row);
    if (closed === row) return;
    button(row).ariaExpanded = "true";
    const { text, result, answer } = this.#elements.get(row);
    const cell = element("td", { colSpan: 3 }, ...details(text, result, answer));
    row.after(element("tr", { className: "details" }, cell));
    cell.scrollIntoView({ block: "nearest" });
  }

  // Closes the open row and returns it.
  #close() {
    const opened = this.#body.querySelector(".details");
    const row = opened?.previousElementSibling;
    if (row) button(row).ariaExpanded = "false";
    opened?.remove();
    return row;
  }

  // The Tab key stops at one row; the arrow keys move from there.
  #move(event) {
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" };
    const sibling = next[event.key];
    if (!sibling) return;
    event.preventDefault();
    const row = beside(event.target.closest("tr"), sibling);
    if (row) this.#focus(row);
  }

  #focus(row) {
    this.#stop(button(row));
    button(row).focus();
  }

  #stop(at) {
    for (const stop of this.#body.querySelectorAll("button[tabindex='0']")) stop.tabIndex = -1;
    if (at) at.tabIndex = 0;
  }
}

const button = (row) => row.querySelector("button");

function beside(row, sibling) {
  const next = row[sibling];
  return next?.className === "details" ? next[sibling] : next;
}

// Saves a file of these parts. Excel recognizes UTF-8 in CSV by the byte order mark.
export function download(parts, name) {
  const mark = name.endsWith(".csv") ? ["\ufeff"] : [];
  const href = URL.createObjectURL(new Blob([...mark, ...parts]));
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // the browser may ask where to save it
}

// How wide a label is in the table, in em.
function width(label) {
  pen.font = `600 100px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(label).width / 100;
}
