// The page: sends the texts to the API and shows the answers.

import { apiKey, call, curl, requests } from "./api.js";
import {
  Table,
  bars,
  coloured,
  count,
  element,
  facts,
  milliseconds,
  percent,
  tokenList,
  verdict,
} from "./view.js";

const $ = (id) => document.getElementById(id);

const EMBEDDED_MODEL = "minilm-l6-tweet-sentiment";
const CURL_SHOWN = 1_500; // characters; Copy copies the whole command
const EXAMPLES = [
  ["en", "English", "I love the camera, but the battery is terrible and support never answers."],
  [
    "en",
    "Several lines",
    "Best concert of my life, thank you!\nThe meeting is at 3pm in room 204.\n" +
      "Two hours on hold, and then they hung up on me.\nNot bad at all, I'd come again.\n" +
      "The parcel arrived today.",
  ],
  ["es", "Español", "La comida estaba riquísima y el personal fue muy amable."],
  ["de", "Deutsch", "Der Zug kam zwei Stunden zu spät, und niemand wusste Bescheid."],
  ["fr", "Français", "C'est le plus beau film que j'ai vu cette année."],
  ["ar", "العربية", "الخدمة ممتازة والموظفون لطفاء جدا."],
  ["hi", "हिन्दी", "यह फ़ोन बहुत धीमा है, पैसे की बर्बादी।"],
];

let models = [];
let limits = { max_texts: 1_000, max_queue_tokens: 65_536 }; // until /info answers
let run = new AbortController(); // ends all requests for the latest texts

// Each line that is not blank is a text.
const texts = () => $("texts").value.split("\n").filter((line) => line.trim());
// Undefined if the service has only one model.
const chosenModel = () => (models.length > 1 ? $("model").value : undefined);

async function classify() {
  run.abort();
  run = new AbortController();
  const { signal } = run;
  $("problem").replaceChildren();
  $("answer").ariaBusy = "true";
  $("cancel").hidden = false;
  try {
    const all = texts();
    await (all.length > 1 ? classifyMany(all, signal) : classifyOne(all[0], signal));
  } catch (error) {
    if (signal === run.signal) fail(error);
  } finally {
    if (signal === run.signal) rest();
  }
}

async function classifyOne(text, signal) {
  progress(0, 1);
  const body = { inputs: text, model: chosenModel() };
  const { answer, stages, roundTrip } = await call("classify", body, signal).catch((error) => {
    if (signal === run.signal) $("result").replaceChildren();
    throw error;
  });
  const [result] = answer.results;
  show(
    verdict(result, answer.labels),
    ...details(text, result, answer, [...timing(stages), ["Round trip", milliseconds(roundTrip)]]),
  );
  say(`${result.label}, ${percent(result.score)}`);
}

// Sends one request after the other. An answer is shown at once, and stays if a later request fails.
async function classifyMany(all, signal) {
  const table = new Table(details);
  const footer = element("div");
  const sums = {};
  const started = performance.now();
  let done = 0;
  progress(0, all.length);
  show(table.element, footer);
  for (const inputs of requests(all, limits)) {
    const { answer, stages } = await call("classify", { inputs, model: chosenModel() }, signal);
    table.add(inputs, answer);
    done += inputs.length;
    progress(done, all.length);
    for (const [name, spent] of Object.entries(stages)) sums[name] = (sums[name] ?? 0) + spent;
    const elapsed = performance.now() - started;
    const rate = `${count(Math.round(done / (elapsed / 1_000)), "text")}/s`;
    footer.replaceChildren(
      facts([...timing(sums), ["Round trips", milliseconds(elapsed)], ["Throughput", rate]]),
    );
  }
  say(`${count(done, "text")} classified`);
}

const timing = (stages) =>
  Object.entries(stages).map(([name, spent]) => [
    name[0].toUpperCase() + name.slice(1),
    milliseconds(spent),
  ]);

// The details of a result: the score of every class, the words and the number of tokens.
function details(text, result, answer, times = []) {
  const words = element("p", { className: "words", dir: "auto" }, text);
  if (result.error) return [words];
  const note = element("p", { className: "note" }, "Computing the effect of each word …");
  const place = element("div", {}, words, note);
  explain(text, answer, place, run.signal);
  const tokens = result.truncated ? `${result.tokens} (truncated)` : `${result.tokens}`;
  const numbers = facts([["Tokens", tokens], ...times]);
  return [bars(result, answer.labels), place, numbers, tokenDetails(text, answer.model)];
}

// The tokens of a text. They are requested when the user opens the list.
function tokenDetails(text, model) {
  const place = element("div");
  const summary = element("summary", { textContent: "Tokens as the model sees them" });
  const details = element("details", { className: "tokens" }, summary, place);
  details.addEventListener("toggle", async () => {
    if (!details.open || place.querySelector("ol")) return;
    try {
      const body = { inputs: text, model: model.name };
      const { answer } = await call("tokenize", body, run.signal);
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

function show(...parts) {
  $("result").replaceChildren(element("article", { className: "card" }, ...parts));
  reveal();
}

// On a phone the answer is below the form.
function reveal() {
  if (matchMedia("(max-width: 52rem)").matches) $("answer").scrollIntoView({ block: "nearest" });
}

// Announces the words to screen readers.
function say(words) {
  $("status").textContent = words;
}

function progress(done, all) {
  $("progress").hidden = false;
  $("done").textContent = `${done.toLocaleString("en")} of ${count(all, "text")}`;
  if (all > 1) Object.assign($("bar"), { max: all, value: done });
  else $("bar").removeAttribute("value"); // an animation without a value
}

function rest() {
  $("answer").ariaBusy = "false";
  $("progress").hidden = true;
  $("cancel").hidden = true;
  if (run.signal.aborted) run = new AbortController(); // so that the rows can still be opened
}

function cancel() {
  run.abort();
  $("texts").focus(); // because the button that had the focus is hidden now
}

function fail(error) {
  if (run.signal.aborted) {
    say("Cancelled");
    return;
  }
  const { title, status, requestId, retryAfter } = error;
  const message = status === 401 ? "Enter an API key for this service, below the text" : error.message;
  const wait = retryAfter && ` Try again in ${count(Number(retryAfter), "second")}.`;
  const reference = [status && `HTTP ${status}`, requestId && `request ${requestId}`];
  $("problem").replaceChildren(
    element("strong", { textContent: title ?? "The page has an error" }),
    element("p", {}, `${message[0].toUpperCase()}${message.slice(1).replace(/\.$/, "")}.`, wait),
    element("p", { className: "note" }, reference.filter(Boolean).join(" · ")),
  );
  reveal();
  if (status === 401) askForKey();
}

function askForKey() {
  $("key-field").hidden = false;
  $("key").select();
}

// Updates the number of texts and the curl command.
function refresh() {
  const all = texts();
  $("count").textContent = all.length > 1 ? count(all.length, "text") : "";
  const first = all.slice(0, limits.max_texts);
  const command = curl({ inputs: all.length > 1 ? first : (all[0] ?? ""), model: chosenModel() });
  $("curl").textContent =
    command.length > CURL_SHOWN ? `${command.slice(0, CURL_SHOWN)} …` : command;
  $("copy").value = command;
  $("curl-note").hidden = first.length === all.length;
  $("curl-note").textContent = `This command sends only the first ${count(first.length, "text")}: one request may not have more.`;
}

async function copy() {
  const command = $("copy").value;
  try {
    await navigator.clipboard.writeText(command);
    say("Copied");
    $("copy").textContent = "Copied";
    setTimeout(() => ($("copy").textContent = "Copy"), 1_500);
  } catch {
    // Without TLS, browsers deny access to the clipboard. The user copies the selection instead.
    $("curl").textContent = command;
    getSelection().selectAllChildren($("curl"));
    $("copy").textContent = "Selected";
  }
}

async function load() {
  $("problem").replaceChildren();
  try {
    const [info, served] = await Promise.all([call("info"), call("models")]);
    limits = info.answer.limits;
    models = served.answer.models;
  } catch (error) {
    fail(error);
    return;
  }
  $("model").replaceChildren(...models.map(({ name }) => new Option(name)));
  $("model-field").hidden = models.length === 1;
  describe();
}

function describe() {
  const model = models[Math.max(0, $("model").selectedIndex)];
  const { name, precision, labels, max_tokens: most } = model;
  const classes = labels.length > 6 ? count(labels.length, "label") : labels.join(", ");
  $("served").textContent = `${name}, ${precision} · ${classes} · up to ${count(most, "token")}`;
  $("english-only").hidden = name !== EMBEDDED_MODEL;
  refresh();
}

function example([lang, title, text]) {
  const chip = element("button", { type: "button", lang, textContent: title });
  chip.addEventListener("click", () => {
    $("texts").value = text;
    refresh();
    classify();
  });
  return chip;
}

function submit(event) {
  event.preventDefault();
  if (texts().length) classify();
  else $("texts").focus();
}

$("examples").append(...EXAMPLES.map(example));
$("form").addEventListener("submit", submit);
$("texts").addEventListener("input", refresh);
$("texts").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
});
$("cancel").addEventListener("click", cancel);
$("copy").addEventListener("click", copy);
$("model").addEventListener("change", describe);
$("key").value = apiKey.get();
$("key").addEventListener("change", () => {
  apiKey.set($("key").value);
  if (models.length) refresh();
  else load();
});
refresh();
load();
