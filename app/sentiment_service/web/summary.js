// What many results have in common: the number and share of texts with each label, how polarity or
// score is spread, and the texts at both ends. It keeps counts and a few texts, however many there are.

import { FAILED, NONE, count, element, filled, hint, labelsOf, name, number, percent, polarity, share, toned } from "./view.js";

const BINS = 20;
const ENDS = 3; // texts at each end
const FEW = 10; // texts; fewer need no histogram

export class Summary {
  element = element("div", { className: "summary" });
  counts = new Map(); // label → number of texts
  total = 0;
  pressed; // the label that is chosen; undefined for all
  #strip = element("div", { className: "strip", ariaHidden: "true" });
  #labels = element("ul", { className: "counts", ariaLabel: "Show only one label" });
  #choices = new Map(); // label → its item in the list, which stays, so that it keeps the focus
  #spread = element("div");
  #hints = element("div");
  #warned = new Map(); // warning → number of texts
  #bins = Array.from({ length: BINS }, () => new Map()); // label → number of texts
  #lowest = [];
  #highest = [];

  // `choose` is called when the user has pressed a label.
  constructor(choose) {
    this.element.append(this.#strip, this.#labels, this.#hints, this.#spread);
    this.choose = choose;
  }

  // `rows` have a text and its result.
  add(rows, labels) {
    for (const { text, result } of rows) {
      for (const label of labelsOf(result)) this.counts.set(label, (this.counts.get(label) ?? 0) + 1);
      this.total += 1;
      if (result.error) continue;
      const { label } = result;
      for (const warning of result.warnings ?? []) this.#warned.set(warning, (this.#warned.get(warning) ?? 0) + 1);
      this.bipolar = "polarity" in result;
      const value = this.bipolar ? result.polarity : result.score;
      const from = this.bipolar ? (value + 1) / 2 : value;
      const bin = this.#bins[Math.min(BINS - 1, Math.floor(from * BINS))];
      bin.set(label, (bin.get(label) ?? 0) + 1);
      insert(this.#highest, { text, label, value }, (a, b) => b.value - a.value);
      insert(this.#lowest, { text, label, value }, (a, b) => a.value - b.value);
    }
    this.#draw(labels);
  }

  #draw(labels) {
    const counted = [...labels, NONE, FAILED].filter((label) => this.counts.has(label));
    const part = (label) => this.counts.get(label) / this.total;
    this.#strip.replaceChildren(...counted.map((label) => toned(filled(element("i"), part(label)), label, labels)));
    for (const [index, label] of counted.entries()) {
      if (!this.#choices.has(label)) this.#labels.insertBefore(this.#choice(label, labels), this.#labels.children[index]);
      const item = this.#choices.get(label);
      item.querySelector("strong").textContent = number.format(this.counts.get(label));
      item.querySelector("small").textContent = ` ${share(part(label))}`;
    }
    const hints = [...this.#warned].map(([warning, texts]) =>
      hint(warning, `${count(texts, "text")} of ${number.format(this.total)} ${texts === 1 ? "does" : "do"}`),
    );
    this.#hints.replaceChildren(...hints);
    if (this.total >= FEW && this.#highest.length) {
      this.#spread.replaceChildren(this.#histogram(labels), ...this.#ends(labels));
    }
  }

  #choice(label, labels) {
    const only = element("button", { type: "button", ariaPressed: "false" }, element("strong"), ` ${name(label)}`, element("small"));
    only.addEventListener("click", () => this.#press(only, label));
    const item = toned(element("li", {}, only), label, labels);
    this.#choices.set(label, item);
    return item;
  }

  #press(only, label) {
    this.pressed = only.ariaPressed === "true" ? undefined : label;
    for (const other of this.#labels.querySelectorAll("button")) {
      other.ariaPressed = String(other === only && this.pressed !== undefined);
    }
    this.choose();
  }

  // A column for each bin, with the labels of its texts in their colours.
  #histogram(labels) {
    const heights = this.#bins.map((bin) => [...bin.values()].reduce((sum, amount) => sum + amount, 0));
    const columns = this.#bins.map((bin) => {
      const parts = labels.filter((label) => bin.has(label)).map((label) => {
        const made = toned(element("i"), label, labels);
        made.style.height = `${(bin.get(label) / Math.max(...heights)) * 100}%`;
        return made;
      });
      return element("span", {}, ...parts);
    });
    const [name, low, middle, high, show] = this.bipolar
      ? ["Polarity", "−1", "0", "+1", polarity]
      : ["Score of the label", "0%", "50%", "100%", percent];
    const at = (bin) => show(this.bipolar ? (bin / BINS) * 2 - 1 : bin / BINS);
    const said = heights.flatMap((height, bin) => (height ? [`${at(bin)} to ${at(bin + 1)}: ${count(height, "text")}`] : []));
    return element(
      "figure",
      {},
      element("figcaption", { textContent: name }),
      element("div", { className: "histogram", role: "img", ariaLabel: `${name}. ${said.join("; ")}` }, ...columns),
      element("p", { className: "ends", ariaHidden: "true" }, ...[low, middle, high].map((textContent) => element("span", { textContent }))),
    );
  }

  #ends(labels) {
    const [first, second, show] = this.bipolar
      ? ["Most positive", "Most negative", polarity]
      : ["Highest score", "Lowest score", percent];
    const list = (title, texts) =>
      element(
        "section",
        { className: "extremes" },
        element("h3", { textContent: title }),
        element(
          "ul",
          {},
          ...texts.map(({ text, label, value }) => {
            const made = element("li", {}, element("strong", { textContent: show(value), title: label }), " ");
            made.append(element("span", { dir: "auto", textContent: text.slice(0, 200) }));
            return toned(made, label, labels);
          }),
        ),
      );
    return [list(first, this.#highest), list(second, this.#lowest)];
  }
}

function insert(list, item, order) {
  if (list.length === ENDS && order(item, list.at(-1)) >= 0) return;
  list.push(item);
  list.sort(order);
  list.length = Math.min(list.length, ENDS);
}
