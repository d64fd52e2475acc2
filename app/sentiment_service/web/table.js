// The answers to many texts: the number of texts with each label, and a row for each text. The user
// sorts them by a click on a column's title, shows only one label or only texts that contain
// something, and saves the rows that are shown.

import { count, element, filled, number, percent, toned } from "./view.js";

// What each column is sorted by.
const ORDERS = [
  (a, b) => a.label.localeCompare(b.label),
  (a, b) => (a.result.score ?? -1) - (b.result.score ?? -1),
  (a, b) => a.text.localeCompare(b.text),
];
const DIRECTIONS = { none: "ascending", ascending: "descending", descending: "none" };

export class Table {
  element = document.getElementById("many").content.cloneNode(true).firstElementChild;
  #body = this.element.querySelector("tbody");
  #titles = [...this.element.querySelectorAll("th")];
  #search = this.element.querySelector("[type=search]");
  #label = ""; // the only label that is shown; empty for all
  #counts = new Map(); // label → number of texts
  #results = new Map(); // row → its text, label, result and answer, in the order of the texts

  // `details` returns what an open row shows.
  constructor(details) {
    this.#body.addEventListener("click", (event) => {
      this.#toggle(event.target.closest("tr"), details);
    });
    this.#body.addEventListener("keydown", (event) => this.#move(event));
    for (const title of this.#titles) {
      title.firstElementChild.addEventListener("click", () => this.#sort(title));
    }
    this.#search.addEventListener("input", () => this.#arrange());
    this.element.querySelector(".save").addEventListener("click", () => this.#save());
  }

  // Adds the rows of the next texts.
  add(texts, answer) {
    const rows = answer.results.map((result, index) => this.#row(texts[index], result, answer));
    this.#summarise(answer.labels);
    if (this.#label || this.#search.value || this.#sorted) this.#arrange();
    else this.#body.append(...rows);
    this.#stop(this.#body.querySelector("[tabindex='0']") ?? this.#body.querySelector("button"));
  }

  #row(text, result, answer) {
    const row = document.getElementById("row").content.firstElementChild.cloneNode(true);
    const [labelCell, score] = row.cells;
    const { error } = result;
    const label = error ? "error" : result.label;
    labelCell.textContent = label;
    score.textContent = error ? "–" : percent(result.score);
    button(row).textContent = text.slice(0, 300); // one line is visible, so a long text is cut
    if (error) button(row).after(element("small", { textContent: error.message }));
    else toned(row, label, answer.labels);
    this.#counts.set(label, (this.#counts.get(label) ?? 0) + 1);
    this.#results.set(row, { text, label, result, answer });
    return row;
  }

  // The number of texts with each label. A click shows only these texts.
  #summarise(labels) {
    const counts = this.#counts;
    const counted = [...labels, "error"].filter((label) => counts.has(label));
    this.element.querySelector("h2").textContent = count(this.#results.size, "text");
    this.element.querySelector(".strip").replaceChildren(
      ...counted.map((label) => {
        const part = counts.get(label) / this.#results.size;
        return toned(filled(element("i"), part), label, labels);
      }),
    );
    this.element.querySelector(".counts").replaceChildren(
      ...counted.map((label) => {
        const amount = element("strong", { textContent: number.format(counts.get(label)) });
        const only = element("button", { type: "button" }, amount, ` ${label}`);
        only.ariaPressed = String(label === this.#label);
        only.addEventListener("click", () => {
          this.#label = only.ariaPressed === "true" ? "" : label;
          for (const other of this.element.querySelectorAll(".counts button")) {
            other.ariaPressed = String(other === only && this.#label !== "");
          }
          this.#arrange();
        });
        return toned(element("li", {}, only), label, labels);
      }),
    );
  }

  // The column that the rows are sorted by, if any.
  get #sorted() {
    return this.#titles.find((title) => (title.ariaSort ?? "none") !== "none");
  }

  // The first click sorts the rows, the second reverses them, the third restores their order.
  #sort(title) {
    const direction = DIRECTIONS[title.ariaSort ?? "none"];
    for (const other of this.#titles) other.ariaSort = "none";
    title.ariaSort = direction;
    this.#arrange();
  }

  // The rows that the filters let through, in the chosen order.
  #shown() {
    const wanted = this.#search.value.trim().toLowerCase();
    const shown = [...this.#results].filter(
      ([, { text, label }]) =>
        (!this.#label || label === this.#label) && text.toLowerCase().includes(wanted),
    );
    const column = this.#sorted;
    if (!column) return shown;
    const order = ORDERS[this.#titles.indexOf(column)];
    const sign = column.ariaSort === "ascending" ? 1 : -1;
    return shown.sort(([, a], [, b]) => sign * order(a, b));
  }

  #arrange() {
    this.#close();
    this.#body.replaceChildren(...this.#shown().map(([row]) => row));
    this.#stop(this.#body.querySelector("button"));
  }

  #save() {
    const shown = this.#shown().map(([, result]) => result);
    const labels = this.#results.values().next().value?.answer.labels ?? [];
    const more = ["polarity", "labels", "warnings"].filter((name) => shown.some(({ result }) => name in result));
    const lines = shown.map(({ text, label, result }) => [
      text,
      result.error ? "" : label,
      result.score ?? "",
      ...labels.map((name) => result.scores?.[name] ?? ""),
      ...more.map((name) => result[name] ?? ""),
      result.error?.message ?? "",
    ]);
    const csv = [["text", "label", "score", ...labels, ...more, "error"], ...lines]
      .map((cells) => `${cells.map(quoted).join(",")}\r\n`)
      .join("");
    // Excel recognizes UTF-8 by the byte order mark.
    const href = URL.createObjectURL(new Blob(["\ufeff", csv], { type: "text/csv" }));
    element("a", { href, download: "sentiment.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000); // the browser may ask where to save it
  }

  #toggle(row, details) {
    if (!this.#results.has(row)) return;
    const closed = this.#close();
    this.#focus(row);
    if (closed === row) return;
    button(row).ariaExpanded = "true";
    const { text, result, answer } = this.#results.get(row);
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
    let row = event.target.closest("tr")[sibling];
    if (row?.className === "details") row = row[sibling];
    if (row) this.#focus(row);
  }

  #focus(row) {
    this.#stop(button(row));
    button(row).focus();
  }

  #stop(at) {
    for (const stop of this.#body.querySelectorAll("[tabindex='0']")) stop.tabIndex = -1;
    if (at) at.tabIndex = 0;
  }
}

const button = (row) => row.querySelector("button");

// A cell of a CSV file (RFC 4180).
const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
