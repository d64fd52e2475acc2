// Builds the HTML of answers. Texts are inserted as text, never as markup.

import { call } from "./api.js";

const PALETTE = 8; // colours in style.css for labels other than the sentiments
const SENTIMENTS = ["negative", "neutral", "positive"];
export const MANY = 6; // labels; more are not listed in the header
const FIT = 12; // bars; a list of more is as high as these, and is scrolled
const WORTH_A_NUMBER = 0.1; // share of the strongest word; weaker words show no number

export const number = new Intl.NumberFormat("en");
const tenthOfPercent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1 });
const wholePercent = new Intl.NumberFormat("en", { style: "percent" });
const signed = (digits) =>
  new Intl.NumberFormat("en", {
    signDisplay: "exceptZero",
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
const tenths = signed(1);
const hundredths = signed(2);

export const percent = (score) => tenthOfPercent.format(score);
export const share = (part) => wholePercent.format(part);
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
  const sentiment = String(label).toLowerCase();
  made.dataset.tone = SENTIMENTS.includes(sentiment) ? sentiment : labels.indexOf(label) % PALETTE;
  return made;
}

export function filled(made, part) {
  made.style.width = `${part * 100}%`;
  return made;
}

// In the place of a label; a model may call one "error".
export const FAILED = Symbol("error");
export const NONE = Symbol("no label");
export const name = (label) => label.description ?? label;
// What a text counts as: of a multi-label model, each label that applies.
export const labelsOf = ({ error, label, labels = [label] }) => (error ? [FAILED] : labels.length ? labels : [NONE]);
export const named = (result) => labelsOf(result).map(name).join(", ");

// The label in large type; of a multi-label model, the labels that apply.
export const verdict = (result, labels) =>
  toned(element("h2", { className: "verdict", textContent: named(result) }), labelsOf(result)[0], labels);

// The polarity as a number and on a scale.
function gauge({ label, polarity: value }, labels) {
  const at = element("i");
  at.style.left = `${((value + 1) / 2) * 100}%`;
  const made = element(
    "div",
    { className: "polarity" },
    element("p", {}, "Polarity ", element("strong", { textContent: polarity(value) })),
    element("div", { className: "scale", ariaHidden: "true" }, at),
    element("p", { className: "ends", ariaHidden: "true" }, ...["−1 negative", "0", "+1 positive"].map((end) => element("span", { textContent: end }))),
    element("p", { className: "note", textContent: "The score of positive minus that of negative." }),
  );
  return toned(made, label, labels);
}

// A label and its score, or the labels that apply, in one line.
export const heading = (result) =>
  result.labels ? named(result) : `${result.label} ${percent(result.score)}`;

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
  const list = element("ul", { className: "bars", ariaLabel: "Scores" }, ...items);
  if (labels.length > FIT) list.tabIndex = 0; // so that the keyboard can scroll it
  return list;
}

// The text. It takes the focus, so that the keyboard can scroll a long one.
export const words = (...parts) =>
  element("p", { className: "words", dir: "auto", tabIndex: 0, role: "group", ariaLabel: "Text" }, ...parts);

// The text, with each word coloured by its effect on the score of the label.
function coloured(text, { label, words: weights }, labels) {
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
function cutOff({ text, offsets, sequence_ids: sequences }) {
  const points = Array.from(text);
  const read = offsets.filter((_, index) => sequences[index] !== null);
  const [start, end] = [read[0][0], read.at(-1)[1]];
  const grey = (from, to) => element("span", { className: "cut" }, points.slice(from, to).join(""));
  return words(grey(0, start), points.slice(start, end).join(""), grey(end));
}

// The sentences of a text, each with its label and score, or with its error.
function sentenceList(text, sentences, labels) {
  const points = Array.from(text); // offsets count code points
  const items = sentences.map(({ start, end, error, ...result }) => {
    const words = element("span", { dir: "auto", textContent: points.slice(start, end).join("") });
    const found = element("strong", { textContent: error ? "error" : heading(result) });
    if (!error) return toned(element("li", {}, found, words), labelsOf(result)[0], labels);
    const why = element("small", { textContent: asSentence(error.message) });
    return element("li", { className: "failed" }, found, why, words);
  });
  return element("ol", { className: "sentences", ariaLabel: "Sentences" }, ...items);
}

// The tokens and their numbers in the vocabulary. Special tokens are paler.
function tokenList({ tokens, ids, sequence_ids: sequences }) {
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

export function duration(milliseconds) {
  const seconds = Math.round(milliseconds / 1_000);
  return seconds < 90 ? count(seconds, "second") : count(Math.round(seconds / 60), "minute");
}

export const bytes = (size) =>
  size < 1e6 ? `${number.format(Math.ceil(size / 1e3))} kB` : `${number.format(Math.round(size / 1e6))} MB`;

export const milliseconds = (value) =>
  value < 1_000 ? `${value.toFixed(value < 10 ? 1 : 0)} ms` : `${(value / 1_000).toFixed(2)} s`;

const INDEPENDENT =
  "Each label has a score of its own: several may apply, or none. The scores do not add up to 100%. " +
  "Labels in bold reach their threshold.";

// What each warning of the service says of a text, or of several: "1 text of 3 does".
const WARNINGS = {
  other_language: (subject) =>
    `${subject} not look English. The model was trained on English only, so do not rely on its answer.`,
  unknown_tokens: (subject) =>
    `${subject} not consist of words that the model knows: it sees more than a fifth of the tokens as unknown.`,
};

const UNKNOWN = (warning) => (subject) => `${subject} have the warning “${warning}”.`;

export const hint = (warning, subject) =>
  element("p", { className: "warning", textContent: (WARNINGS[warning] ?? UNKNOWN(warning))(subject) });

// The details of a result: polarity, the score of every class, the words, the sentences, the answer
// as JSON and the tokens. `figures` are for operators.
export function details(text, result, answer, signal, figures = []) {
  if (result.error) return [words(text)];
  const { labels, model } = answer;
  const note = element("p", { className: "note" });
  const place = element("div", {}, words(text), note);
  if (result.truncated) showCut(text, model, place, signal);
  else explain(text, answer, place, signal);
  return [
    ...(result.warnings ?? []).map((warning) => hint(warning, "This text does")),
    ...("polarity" in result ? [gauge(result, labels)] : []),
    bars(result, labels),
    ...(result.labels ? [element("p", { className: "note", textContent: INDEPENDENT })] : []),
    place,
    ...(result.sentences ? [sentenceList(text, result.sentences, labels)] : []),
    facts([["Tokens", result.tokens], ...(result.windows ? [["Windows", result.windows]] : []), ...figures]),
    folded("Tokens as the model sees them", async () => {
      const tokens = await call("tokenize", { inputs: text, model: model.name }, signal);
      return tokenList(tokens.answer.results[0]);
    }),
    folded("The answer as JSON", () => {
      const textContent = JSON.stringify({ model, labels, results: [result] }, null, 2);
      return element("pre", { textContent, tabIndex: 0, role: "region", ariaLabel: "The answer as JSON" });
    }),
  ];
}

// What is made when the user opens it.
function folded(title, make) {
  const place = element("div");
  const made = element("details", { className: "folded" }, element("summary", { textContent: title }), place);
  made.addEventListener("toggle", async () => {
    if (!made.open || place.querySelector(":scope > :not(.note)")) return;
    try {
      place.replaceChildren(await make());
    } catch (error) {
      const textContent = `Not available: ${error.message}`;
      place.replaceChildren(element("p", { className: "note", textContent }));
    }
  });
  return made;
}

// Greys the part of the text that the model does not read.
async function showCut(text, model, place, signal) {
  const note = place.querySelector(".note");
  note.textContent =
    "The text is too long for the model, so only a part was read. " +
    "To classify all of it, choose “Read long texts in windows”.";
  try {
    const { answer } = await call("tokenize", { inputs: text, model: model.name }, signal);
    const whole = cutOff(answer.results[0]);
    place.replaceChildren(whole, note);
    showBegin(whole, whole.lastElementChild);
    note.prepend("The grey part was not read. ");
  } catch {
    // The note still says what happened.
  }
}

// Scrolls a long text to where the grey part begins.
function showBegin(whole, part) {
  const below = part.getBoundingClientRect().top - whole.getBoundingClientRect().bottom;
  if (part.textContent && below > 0) whole.scrollTop = below + whole.clientHeight / 2;
}

// If this fails, the classification is still shown.
async function explain(text, { model, labels }, place, signal) {
  const note = place.querySelector(".note");
  note.textContent = "Computing the effect of each word …";
  try {
    const { answer } = await call("explain", { inputs: text, model: model.name }, signal);
    place.replaceChildren(coloured(text, answer, labels), note);
    note.className = "note legend";
    note.replaceChildren(
      element("span", {}, element("i", { className: "for" }), ` + speaks for “${answer.label}”`),
      element("span", {}, element("i", { className: "against" }), " − speaks against it"),
      element("span", { textContent: "The number is how many points its score loses without the word." }),
    );
    toned(note, answer.label, labels);
  } catch (error) {
    note.textContent = signal.aborted ? "" : `The effect of each word is not available: ${error.message}`;
  }
}
