// Builds the HTML of answers. Texts are inserted as text, never as markup.

const PALETTE = 8; // colours in style.css for labels other than the sentiments
const SENTIMENTS = ["negative", "neutral", "positive"];
const WORTH_A_NUMBER = 0.1; // share of the strongest word; weaker words show no number

const number = new Intl.NumberFormat("en");
const share = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1 });
const signed = new Intl.NumberFormat("en", {
  signDisplay: "exceptZero",
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
});

export const percent = (score) => share.format(score);
export const count = (amount, noun) => `${number.format(amount)} ${noun}${amount === 1 ? "" : "s"}`;

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Marks an element with its label; style.css has the colour, for light and dark.
function toned(made, label, labels) {
  const sentiment = label.toLowerCase();
  made.dataset.tone = SENTIMENTS.includes(sentiment) ? sentiment : labels.indexOf(label) % PALETTE;
  return made;
}

function filled(made, part) {
  made.style.width = `${part * 100}%`;
  return made;
}

// The label and its score, in large type.
export function verdict({ label, score }, labels) {
  return toned(
    element(
      "div",
      { className: "verdict" },
      element("h2", { textContent: label }),
      element("strong", { textContent: percent(score) }),
    ),
    label,
    labels,
  );
}

// A bar for the score of each class.
export function bars({ label: best, scores }, labels) {
  const items = labels.map((label) =>
    toned(
      element(
        "li",
        { className: label === best ? "best" : "" },
        element("span", { textContent: label }),
        element("span", { className: "bar" }, filled(element("i"), scores[label])),
        element("span", { className: "score", textContent: percent(scores[label]) }),
      ),
      label,
      labels,
    ),
  );
  return element("ul", { className: "bars", ariaLabel: "Scores" }, ...items);
}

// The text, with each word coloured by its effect on the score of the label.
export function coloured(text, { label, words }, labels) {
  const points = Array.from(text); // offsets count code points
  const strongest = Math.max(0.05, ...words.map((word) => Math.abs(word.contribution)));
  const parts = [];
  let end = 0;
  for (const word of words) {
    const letters = points.slice(word.start, word.end).join("");
    parts.push(points.slice(end, word.start).join(""), weighed(letters, word, strongest));
    end = word.end;
  }
  parts.push(points.slice(end).join(""));
  return toned(element("p", { className: "words", dir: "auto" }, ...parts), label, labels);
}

function weighed(letters, { contribution }, strongest) {
  const points = signed.format(contribution * 100).replace("-", "−");
  const weight = Math.abs(contribution) / strongest;
  const word = element("span", { className: "word", title: `${points} points` }, letters);
  if (weight < WORTH_A_NUMBER) return word;
  word.classList.add(contribution > 0 ? "for" : "against");
  word.style.setProperty("--weight", weight.toFixed(2));
  word.append(element("small", { dir: "ltr", textContent: points }));
  return word;
}

// The tokens and their numbers in the vocabulary. Special tokens are paler.
export function tokenList({ tokens, ids, sequence_ids: sequences }) {
  const items = tokens.map((token, index) =>
    element(
      "li",
      { className: sequences[index] === null ? "special" : "", dir: "auto" },
      token,
      element("small", { textContent: ids[index] }),
    ),
  );
  return element("ol", { ariaLabel: "Tokens" }, ...items);
}

// A list of names and values.
export function facts(pairs) {
  const items = pairs.map(([name, value]) =>
    element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })),
  );
  return element("dl", { className: "facts" }, ...items);
}

export const milliseconds = (value) =>
  value < 1_000 ? `${value.toFixed(value < 10 ? 1 : 0)} ms` : `${(value / 1_000).toFixed(2)} s`;

// The answers to many texts: the number of texts with each label, and a row for each text. `details`
// returns what an open row shows.
export class Table {
  element = document.getElementById("many").content.cloneNode(true).firstElementChild;
  #body = this.element.querySelector("tbody");
  #counts = new Map();
  #results = new Map(); // row → text, result and answer

  constructor(details) {
    this.#body.addEventListener("click", (event) => {
      this.#toggle(event.target.closest("tr"), details);
    });
    this.#body.addEventListener("keydown", (event) => this.#move(event));
  }

  // Adds the rows of the next texts.
  add(texts, answer) {
    const rows = answer.results.map((result, index) => this.#row(texts[index], result, answer));
    this.#body.append(...rows);
    this.#summarise(answer.labels);
    if (rows[0] === this.#body.firstElementChild) button(rows[0]).tabIndex = 0;
  }

  #row(text, result, answer) {
    const row = document.getElementById("row").content.firstElementChild.cloneNode(true);
    const [label, score] = row.cells;
    const { error } = result;
    label.textContent = error ? "error" : result.label;
    score.textContent = error ? "–" : percent(result.score);
    button(row).textContent = text.slice(0, 300); // one line is visible, so a long text is cut
    if (error) button(row).after(element("small", { textContent: error.message }));
    else toned(row, result.label, answer.labels);
    this.#counts.set(label.textContent, (this.#counts.get(label.textContent) ?? 0) + 1);
    this.#results.set(row, [text, result, answer]);
    return row;
  }

  #summarise(labels) {
    const [all, strip, list] = this.element.children;
    const counted = [...labels, "error"].filter((label) => this.#counts.has(label));
    const part = (label) => this.#counts.get(label) / this.#results.size;
    all.textContent = count(this.#results.size, "text");
    strip.replaceChildren(
      ...counted.map((label) => toned(filled(element("i"), part(label)), label, labels)),
    );
    list.replaceChildren(
      ...counted.map((label) => {
        const amount = element("strong", { textContent: number.format(this.#counts.get(label)) });
        return toned(element("li", {}, amount, ` ${label}`), label, labels);
      }),
    );
  }

  #toggle(row, details) {
    if (!this.#results.has(row)) return;
    const opened = this.#body.querySelector(".details");
    const closes = opened?.previousElementSibling;
    if (closes) button(closes).ariaExpanded = "false";
    opened?.remove();
    this.#focus(row);
    if (closes === row) return;
    button(row).ariaExpanded = "true";
    const cell = element("td", { colSpan: 3 }, ...details(...this.#results.get(row)));
    row.after(element("tr", { className: "details" }, cell));
    cell.scrollIntoView({ block: "nearest" });
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
    for (const stop of this.#body.querySelectorAll("[tabindex='0']")) stop.tabIndex = -1;
    button(row).tabIndex = 0;
    button(row).focus();
  }
}

const button = (row) => row.querySelector("button");
