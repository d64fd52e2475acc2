// Builds the HTML of answers. Texts are inserted as text, never as markup.

const PALETTE = 8; // colours in style.css for labels other than the sentiments
const SENTIMENTS = ["negative", "neutral", "positive"];
export const MANY = 6; // labels; more are not listed in the header
const WORTH_A_NUMBER = 0.1; // share of the strongest word; weaker words show no number

export const number = new Intl.NumberFormat("en");
const share = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1 });
const signed = (digits) =>
  new Intl.NumberFormat("en", {
    signDisplay: "exceptZero",
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
const tenths = signed(1);
const hundredths = signed(2);

export const percent = (score) => share.format(score);
// From −1 to 1; a minus sign in the place of the hyphen.
export const polarity = (value) => plusMinus(value, hundredths);
const plusMinus = (value, format) => format.format(value).replace("-", "−");
export const count = (amount, noun) => `${number.format(amount)} ${noun}${amount === 1 ? "" : "s"}`;

// The service's words as a sentence.
export const asSentence = (words) =>
  words[0].toUpperCase() + words.slice(1) + (/[.?!…]$/.test(words) ? "" : ".");

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Marks an element with its label; style.css has the colour, for light and dark.
export function toned(made, label, labels) {
  const sentiment = label.toLowerCase();
  made.dataset.tone = SENTIMENTS.includes(sentiment) ? sentiment : labels.indexOf(label) % PALETTE;
  return made;
}

export function filled(made, part) {
  made.style.width = `${part * 100}%`;
  return made;
}

// The label and its score, in large type; of a multi-label model, the labels that apply.
export function verdict({ label, score, labels: chosen }, labels) {
  return toned(
    element(
      "div",
      { className: "verdict" },
      element("h2", { textContent: chosen ? named(chosen) : label }),
      element("strong", { textContent: chosen ? "" : percent(score) }),
    ),
    label,
    labels,
  );
}

// The same in one line.
const heading = ({ label, score, labels: chosen }) =>
  chosen ? named(chosen) : `${label} ${percent(score)}`;

const named = (labels) => labels.join(", ") || "no label";

// A bar for the score of each class. If there are many, the highest scores come first.
export function bars({ label: best, scores, labels: chosen = [best] }, labels) {
  const order = [...labels];
  if (labels.length > MANY) order.sort((a, b) => scores[b] - scores[a]);
  const items = order.map((label) =>
    toned(
      element(
        "li",
        { className: chosen.includes(label) ? "best" : "" },
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

// The text. It takes the focus, so that the keyboard can scroll a long one.
export const words = (...parts) =>
  element("p", { className: "words", dir: "auto", tabIndex: 0, role: "group", ariaLabel: "Text" }, ...parts);

// The text, with each word coloured by its effect on the score of the label.
export function coloured(text, { label, words: weights }, labels) {
  const points = Array.from(text); // offsets count code points
  const strongest = Math.max(0.05, ...weights.map((word) => Math.abs(word.contribution)));
  const parts = [];
  let end = 0;
  for (const word of weights) {
    const letters = points.slice(word.start, word.end).join("");
    parts.push(points.slice(end, word.start).join(""), weighed(letters, word, strongest));
    end = word.end;
  }
  parts.push(points.slice(end).join(""));
  return toned(words(...parts), label, labels);
}

function weighed(letters, { contribution }, strongest) {
  const points = plusMinus(contribution * 100, tenths);
  const weight = Math.abs(contribution) / strongest;
  const word = element("span", { className: "word", title: `${points} points` }, letters);
  if (weight < WORTH_A_NUMBER) return word;
  word.classList.add(contribution > 0 ? "for" : "against");
  word.style.setProperty("--weight", weight.toFixed(2));
  word.append(element("small", { dir: "ltr", textContent: points }));
  return word;
}

// The text that the model gets, with the part that it does not read in grey. The offsets of the
// tokens count the code points of that text; special tokens have none.
export function cutOff({ text, offsets, sequence_ids: sequences }) {
  const points = Array.from(text);
  const read = offsets.filter((_, index) => sequences[index] !== null);
  const [start, end] = [read[0][0], read.at(-1)[1]];
  const grey = (from, to) => element("span", { className: "cut" }, points.slice(from, to).join(""));
  return words(grey(0, start), points.slice(start, end).join(""), grey(end));
}

// The sentences of a text, each with its label and score, or with its error.
export function sentenceList(text, sentences, labels) {
  const points = Array.from(text); // offsets count code points
  const items = sentences.map(({ start, end, error, ...result }) => {
    const words = element("span", { dir: "auto", textContent: points.slice(start, end).join("") });
    const found = element("strong", { textContent: error ? "error" : heading(result) });
    if (!error) return toned(element("li", {}, found, words), result.label, labels);
    const why = element("small", { textContent: asSentence(error.message) });
    return element("li", { className: "failed" }, found, why, words);
  });
  return element("ol", { className: "sentences", ariaLabel: "Sentences" }, ...items);
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
  return element("ol", { ariaLabel: "Tokens", tabIndex: 0 }, ...items);
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
