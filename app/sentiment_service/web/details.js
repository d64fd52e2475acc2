// The details of one result: what the page shows below the label, and in an open row of the table.

import { call } from "./api.js";
import { bars, coloured, cutOff, element, facts, polarity, sentenceList, tokenList, words } from "./view.js";

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

// The details of a result: the score of every class, the words, the sentences and the number of
// tokens.
export function details(text, result, answer, signal, times = []) {
  if (result.error) return [words(text)];
  const { labels, model } = answer;
  const note = element("p", { className: "note" });
  const place = element("div", {}, words(text), note);
  if (result.truncated) showCut(text, model, place, signal);
  else explain(text, answer, place, signal);
  const numbers = [
    ...("polarity" in result ? [["Polarity", polarity(result.polarity)]] : []),
    ["Tokens", result.tokens],
    ...(result.windows ? [["Windows", result.windows]] : []),
  ];
  return [
    ...(result.warnings ?? []).map((warning) => hint(warning, "This text does")),
    bars(result, labels),
    ...(result.labels ? [element("p", { className: "note", textContent: INDEPENDENT })] : []),
    place,
    ...(result.sentences ? [sentenceList(text, result.sentences, labels)] : []),
    facts([...numbers, ...times]),
    tokenDetails(text, model, signal),
  ];
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

// The tokens of a text. They are requested when the user opens the list.
function tokenDetails(text, model, signal) {
  const place = element("div");
  const summary = element("summary", { textContent: "Tokens as the model sees them" });
  const details = element("details", { className: "tokens" }, summary, place);
  details.addEventListener("toggle", async () => {
    if (!details.open || place.querySelector("ol")) return;
    try {
      const body = { inputs: text, model: model.name };
      const { answer } = await call("tokenize", body, signal);
      place.replaceChildren(tokenList(answer.results[0]));
    } catch (error) {
      const note = `The tokens are not available: ${error.message}`;
      place.replaceChildren(element("p", { className: "note", textContent: note }));
    }
  });
  return details;
}

// If this fails, the classification is still shown.
async function explain(text, { model, labels }, place, signal) {
  const note = place.querySelector(".note");
  note.textContent = "Computing the effect of each word …";
  try {
    const { answer } = await call("explain", { inputs: text, model: model.name }, signal);
    place.replaceChildren(coloured(text, answer, labels), note);
    note.textContent =
      `+ counts for “${answer.label}”, − counts against it. ` +
      "The number is how many points its score loses without the word.";
  } catch (error) {
    note.textContent = signal.aborted ? "" : `The effect of each word is not available: ${error.message}`;
  }
}
