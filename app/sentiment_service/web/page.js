// The page: sends the texts to the API and shows the answers.

import { apiKey, call, patiently, requests, sameModel } from "./api.js";
import { choose, chooseColumn, classifyFile, leave, table } from "./file.js";
import { $, busy, clear, copied, fail, progress, say, show, waits } from "./panel.js";
import { code, link, linked } from "./share.js";
import { Table } from "./table.js";
import { MANY, count, details, element, facts, heading, milliseconds, toned, verdict } from "./view.js";

const CODE_SHOWN = 1_500; // characters; Copy copies the whole code
// The page opens with the first. The embedded model is right about each of them
// (tests/api/routes/test_page.py).
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
const OPTIONS = ["per-line", "windows", "sentences"]; // check boxes
const EARLIER = 20; // entries of the history
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

const checked = () => OPTIONS.filter((id) => $(id).checked);

// The user's choices, for the body of a request. JSON leaves out what is undefined.
const choices = () => ({
  model: models.length > 1 ? $("model").value : undefined,
  overflow: $("windows").checked ? "window" : undefined,
  split: $("sentences").checked ? "sentences" : undefined,
});

const model = () => models[Math.max(0, $("model").selectedIndex)];

// Forgets the last answer, and ends what is under way.
function begin() {
  run.abort();
  run = new AbortController();
  busy(false);
  clear();
}

async function classify() {
  begin();
  const { signal } = run;
  const before = $("result").firstElementChild;
  busy(true);
  try {
    const all = texts();
    const again = restorer();
    if (table) {
      if (!models.length) models = (await call("models", undefined, signal)).answer.models;
      const overflow = choices().overflow ?? "truncate";
      remember(again, table.file.name, await classifyFile(model(), overflow, () => run.signal));
    } else if (all.length > 1) {
      remember(again, all[0], await classifyMany(all, signal));
    } else {
      remember(again, all[0], ...(await classifyOne(all[0], signal)));
    }
  } catch (error) {
    if (signal !== run.signal) return;
    before?.remove(); // it is not there any more if this run has shown something
    signal.aborted ? say("Cancelled") : fail(error);
  } finally {
    if (signal === run.signal) rest();
  }
}

function rest() {
  busy(false);
  if (run.signal.aborted) run = new AbortController(); // so that the rows can still be opened
}

async function classifyOne(text, signal) {
  progress(0, 1);
  const body = { inputs: text, ...choices() };
  const { answer, stages, roundTrip } = await call("classify", body, signal);
  const [result] = answer.results;
  const figures = [...timing(stages), ["Request in all", milliseconds(roundTrip)]];
  show(verdict(result, answer.labels), ...details(text, result, answer, signal, figures));
  say(heading(result));
  return [result.label, answer.labels];
}

// Sends one request after the other. An answer is shown at once, and stays if a later request fails.
async function classifyMany(all, signal) {
  const rows = new Table((...row) => details(...row, run.signal));
  const footer = element("div");
  const chosen = choices();
  const sums = {};
  const started = performance.now();
  let done = 0;
  let digest;
  progress(0, all.length);
  for (const inputs of requests(all, limits)) {
    const request = () => call("classify", { inputs, ...chosen }, signal);
    const { answer, stages } = await patiently(request, signal, waits);
    if (!done) show(rows.element, footer); // without rows, there is nothing to sort or to download
    digest = sameModel(answer.model.digest, digest, "texts");
    rows.add(inputs.map((text, index) => ({ text, result: answer.results[index] })), answer);
    done += inputs.length;
    progress(done, all.length);
    for (const [name, spent] of Object.entries(stages)) sums[name] = (sums[name] ?? 0) + spent;
    const elapsed = performance.now() - started;
    const rate = `${count(Math.round(done / (elapsed / 1_000)), "text")}/s`;
    footer.replaceChildren(facts([...timing(sums), ["Requests in all", milliseconds(elapsed)], ["Throughput", rate]]));
  }
  say(`${count(done, "text")} classified`);
  return count(done, "text");
}

const timing = (stages) =>
  Object.entries(stages).map(([name, spent]) => [STAGES[name] ?? name, milliseconds(spent)]);

// Returns what brings back the texts, or the file, and the options of now.
function restorer() {
  const [{ value }, on, file, column] = [$("texts"), checked(), table?.file, table?.column];
  return async () => {
    if (file) await chooseFile(file, column);
    else write(value, on);
  };
}

// The history is in memory only. A click classifies the same again.
function remember(restore, text, outcome, labels = []) {
  const again = element(
    "button",
    { type: "button" },
    element("strong", { textContent: outcome }),
    " ",
    element("span", { dir: "auto", textContent: text.slice(0, 100) }),
  );
  again.addEventListener("click", () => restore().then(classify));
  const entry = toned(element("li", {}, again), outcome, labels);
  const list = $("history").querySelector("ul");
  [...list.children].find(({ textContent }) => textContent === entry.textContent)?.remove();
  list.prepend(entry);
  if (list.children.length > EARLIER) list.lastElementChild.remove();
  $("history").hidden = list.children.length < 2; // the first is the page's own example
}

function cancel() {
  run.abort();
  (table ? $("file-name") : $("texts")).focus(); // because the button that had the focus is hidden now
}

// Updates the number of texts and the code of the request.
function refresh() {
  const all = texts();
  if (all.length) $("missing").textContent = "";
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
  if (await copied(written)) {
    $("copy").textContent = "Copied";
    setTimeout(() => ($("copy").textContent = "Copy"), 1_500);
  } else {
    $("code").textContent = written; // the user copies the selection
    getSelection().selectAllChildren($("code"));
    $("copy").textContent = "Selected";
  }
}

// The link is also the address of the page then, from where it can be copied without the clipboard.
async function copyLink() {
  const address = link($("texts").value, checked());
  if (address) history.replaceState(null, "", address);
  const where = address && (await copied(address)) ? "Copied." : "This page's address is the link now.";
  $("link-note").textContent = address
    ? `${where} The text is in its fragment, which browsers do not send.`
    : "The text is too long for a link.";
}

async function load() {
  clear();
  try {
    const [info, served] = await Promise.all([call("info"), call("models")]);
    limits = info.answer.limits;
    models = served.answer.models;
    $("version").textContent = info.answer.version;
  } catch (error) {
    fail(error);
    return;
  }
  $("model").replaceChildren(...models.map(({ name }) => new Option(name)));
  $("model-field").hidden = models.length === 1;
  describe();
  if (linked().text || !(table || texts().length)) start();
}

// The page opens with the text of its address, or with an example, which is replaced by typing.
function start() {
  const { text, options } = linked();
  if (text) write(text, options);
  else write(Object.values(EXAMPLES)[0], ["per-line"]);
  if (!text) $("texts").select();
  classify();
}

function describe() {
  const { name, precision, labels, language, text_pairs: pairs, max_tokens: most } = model();
  const classes = labels.length > MANY ? count(labels.length, "label") : labels.join(", ");
  $("served").textContent = `${name}, ${precision} · ${classes} · up to ${count(most, "token")}`;
  $("english-only").hidden = language !== "en";
  $("pairs-only").hidden = !pairs;
  refresh();
}

// Puts a text into the box, in the place of a file.
function write(text, on = checked()) {
  leave();
  $("texts").value = text;
  for (const id of OPTIONS) $(id).checked = on.includes(id);
  refresh();
}

function example([title, text]) {
  const chip = element("button", { type: "button", lang: "en", textContent: title });
  chip.addEventListener("click", () => {
    write(text, [...checked(), "per-line"]);
    classify();
  });
  return chip;
}

async function chooseFile(file, column) {
  begin();
  try {
    await choose(file, column);
  } catch (error) {
    leave();
    $("result").replaceChildren();
    fail(error);
  }
}

function submit(event) {
  event.preventDefault();
  if (table || texts().length) {
    classify();
    return;
  }
  begin();
  $("result").replaceChildren();
  $("missing").textContent = "There is no text yet. Write one, or choose an example or a file.";
  say($("missing").textContent);
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
$("link").addEventListener("click", copyLink);
$("model").addEventListener("change", describe);
$("key").value = apiKey.get();
$("key").addEventListener("change", () => {
  apiKey.set($("key").value);
  if (models.length) refresh();
  else load();
});
$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  const [file] = $("file").files;
  $("file").value = ""; // so that the same file can be chosen again
  if (file) chooseFile(file);
});
$("column").addEventListener("change", chooseColumn);
$("remove").addEventListener("click", () => {
  begin();
  leave();
  $("texts").focus();
});
addEventListener("dragover", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault(); // it may be dropped
  $("form").classList.add("dropping");
});
for (const type of ["dragleave", "drop"]) {
  addEventListener(type, () => $("form").classList.remove("dropping"));
}
addEventListener("drop", (event) => {
  const { files } = event.dataTransfer;
  if (!files.length) return;
  event.preventDefault();
  if (files.length > 1) fail({ title: "Several files", message: "Only one file is classified at a time. Drop one." });
  else chooseFile(files[0]);
});
addEventListener("hashchange", start);
refresh();
load();
