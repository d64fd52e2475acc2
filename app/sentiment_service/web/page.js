// The page: sends the texts to the API and shows the answers.

import { apiKey, call, requests } from "./api.js";
import { code } from "./code.js";
import { details, hint } from "./details.js";
import { Table } from "./table.js";
import { MANY, asSentence, count, element, facts, milliseconds, number, percent, verdict } from "./view.js";

const $ = (id) => document.getElementById(id);

const CODE_SHOWN = 1_500; // characters; Copy copies the whole code
// The embedded model is right about each of them (tests/api/routes/test_page.py).
const EXAMPLES = {
  "Mixed feelings": "I love the camera, but the battery is terrible and support never answers.",
  Sarcasm: "Oh great, my flight is cancelled again. Thanks for nothing.",
  Emoji: "On my way to the airport 😍🎉",
  Negation: "Not bad at all, I'd come again.",
  "Several texts":
    "Best concert of my life, thank you!\nThe meeting is at 3pm in room 204.\n" +
    "Two hours on hold, and then they hung up on me.\nI wouldn't recommend it.\n" +
    "The parcel arrived today.",
};
const EMPTY = $("result").firstElementChild; // what stands there without an answer
const STAGES = {
  tokenize: "Tokenizing",
  queue: "Waiting for a batch",
  inference: "Computing the batch",
};

let models = [];
let limits = { max_texts: 1_000, max_queue_tokens: 65_536 }; // until /info answers
let run = new AbortController(); // ends all requests for the latest texts

// The texts that are not blank: each line, or all lines as one.
function texts() {
  const { value } = $("texts");
  return ($("per-line").checked ? value.split("\n") : [value]).filter((text) => text.trim());
}

// The user's choices, for the body of a request. JSON leaves out what is undefined.
const choices = () => ({
  model: models.length > 1 ? $("model").value : undefined,
  overflow: $("windows").checked ? "window" : undefined,
  split: $("sentences").checked ? "sentences" : undefined,
});

// Forgets the last answer, and ends what is under way.
function begin() {
  run.abort();
  run = new AbortController();
  $("problem").replaceChildren();
  say("");
}

async function classify() {
  begin();
  const { signal } = run;
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
  const body = { inputs: text, ...choices() };
  const { answer, stages, roundTrip } = await call("classify", body, signal).catch((error) => {
    if (signal === run.signal) $("result").replaceChildren();
    throw error;
  });
  const [result] = answer.results;
  show(
    verdict(result, answer.labels),
    ...details(text, result, answer, signal, [
      ...timing(stages),
      ["Request in all", milliseconds(roundTrip)],
    ]),
  );
  say(`${result.label}, ${percent(result.score)}`);
}

// Sends one request after the other. An answer is shown at once, and stays if a later request fails.
async function classifyMany(all, signal) {
  const table = new Table((...row) => details(...row, run.signal));
  const footer = element("div");
  const chosen = choices();
  const sums = {};
  const warned = {};
  const started = performance.now();
  let done = 0;
  progress(0, all.length);
  show(table.element, footer);
  for (const inputs of requests(all, limits)) {
    const { answer, stages } = await call("classify", { inputs, ...chosen }, signal);
    table.add(inputs, answer);
    done += inputs.length;
    progress(done, all.length);
    for (const [name, spent] of Object.entries(stages)) sums[name] = (sums[name] ?? 0) + spent;
    for (const warning of answer.results.flatMap((result) => result.warnings ?? [])) {
      warned[warning] = (warned[warning] ?? 0) + 1;
    }
    const elapsed = performance.now() - started;
    const rate = `${count(Math.round(done / (elapsed / 1_000)), "text")}/s`;
    footer.replaceChildren(
      ...Object.entries(warned).map(([warning, texts]) =>
        hint(warning, `${count(texts, "text")} of ${number.format(done)} ${texts === 1 ? "does" : "do"}`),
      ),
      facts([...timing(sums), ["Requests in all", milliseconds(elapsed)], ["Throughput", rate]]),
    );
  }
  say(`${count(done, "text")} classified`);
}

const timing = (stages) =>
  Object.entries(stages).map(([name, spent]) => [STAGES[name] ?? name, milliseconds(spent)]);

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
  const wait = retryAfter ? ` Try again in ${count(retryAfter, "second")}.` : "";
  const reference = [status && `HTTP ${status}`, requestId && `request ${requestId}`];
  $("problem").replaceChildren(
    element("strong", { textContent: title ?? "The page has an error" }),
    element("p", {}, asSentence(message), wait),
    element("p", { className: "note" }, reference.filter(Boolean).join(" · ")),
  );
  reveal();
  if (status === 401) askForKey();
}

function askForKey() {
  $("key-field").hidden = false;
  $("key").select();
}

// Updates the number of texts and the code of the request.
function refresh() {
  const all = texts();
  $("count").textContent = all.length > 1 ? count(all.length, "text") : "";
  const first = all.slice(0, limits.max_texts);
  const language = document.querySelector("[name=language]:checked").value;
  const inputs = all.length > 1 ? first : (all[0] ?? "");
  const written = code(language, { inputs, ...choices() });
  $("code").textContent =
    written.length > CODE_SHOWN ? `${written.slice(0, CODE_SHOWN)} …` : written;
  $("copy").value = written;
  $("copy").textContent = "Copy";
  $("code-note").hidden = first.length === all.length;
  $("code-note").textContent = `This code sends only the first ${count(first.length, "text")}: one request may not have more.`;
}

async function copy() {
  const written = $("copy").value;
  try {
    await navigator.clipboard.writeText(written);
    say("Copied");
    $("copy").textContent = "Copied";
    setTimeout(() => ($("copy").textContent = "Copy"), 1_500);
  } catch {
    // Without TLS, browsers deny access to the clipboard. The user copies the selection instead.
    $("code").textContent = written;
    getSelection().selectAllChildren($("code"));
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
  const { name, precision, labels, language, max_tokens: most } = model;
  const classes = labels.length > MANY ? count(labels.length, "label") : labels.join(", ");
  $("served").textContent = `${name}, ${precision} · ${classes} · up to ${count(most, "token")}`;
  $("english-only").hidden = language !== "en";
  refresh();
}

function example([title, text]) {
  const chip = element("button", { type: "button", lang: "en", textContent: title });
  chip.addEventListener("click", () => {
    $("texts").value = text;
    $("per-line").checked = true;
    refresh();
    classify();
  });
  return chip;
}

function submit(event) {
  event.preventDefault();
  if (texts().length) {
    classify();
    return;
  }
  begin();
  rest();
  $("result").replaceChildren(EMPTY);
  $("texts").focus();
}

$("examples").append(...Object.entries(EXAMPLES).map(example));
$("form").addEventListener("submit", submit);
$("form").addEventListener("input", refresh); // the texts and the options
$("languages").addEventListener("input", refresh);
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
