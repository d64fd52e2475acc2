// Calls the service's API. URLs are relative to the page, because a proxy may add a prefix.

const KEY = "sentiment-api-key";
// Fewer texts per request than the service allows: the first rows appear sooner, Cancel wastes less
// work, and a slow model stays within its deadline.
const MOST_TEXTS = 200;
// The members that the service's answers have. Others are those of a proxy.
const ANSWERS = {
  classify: ["results", "labels", "model"],
  explain: ["words", "label"],
  tokenize: ["results"],
  info: ["limits"],
  models: ["models"],
};
const ATTEMPTS = 6;
const FOR_A_WHILE = [0, 502, 503]; // 0: no answer
const PASSING = ["overloaded", "shutting_down"];
const NOT_OURS = ["No readable answer", "The answer did not come from the service. A proxy may have sent it."];

// The key is kept until the tab is closed.
let storage = {};
try {
  storage = sessionStorage ?? storage;
} catch {
  // The browser blocks cookies. A reload forgets the key. (Some give null instead.)
}
export const apiKey = {
  get: () => storage[KEY] ?? "",
  set: (value) => (storage[KEY] = value.trim()),
};

// An error with a message for the user.
export class Problem extends Error {
  constructor(title, message, { status = 0, requestId = "", retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { title, status, requestId, retryAfter });
  }
}

// Returns the answer's JSON, the time of each stage in the server, and the round trip. Times are in
// milliseconds.
export async function call(path, body, signal) {
  const started = performance.now();
  const response = await send(path, body, signal);
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
  });
  if (!response.ok || !ANSWERS[path].every((name) => answer?.[name])) throw problem(response, answer);
  return { answer, stages: stages(response), roundTrip: performance.now() - started };
}

async function send(path, body, signal) {
  const lines = typeof body === "string";
  const headers = new Headers(body && { "content-type": lines ? "application/x-ndjson" : "application/json" });
  // No key has other characters, which may come with a copied one, and which a header cannot have.
  if (apiKey.get()) headers.set("authorization", `Bearer ${apiKey.get().replace(/[^!-~]/g, "")}`);
  const method = body ? "POST" : "GET";
  try {
    return await fetch(url(path), { method, headers, body: lines ? body : body && JSON.stringify(body), signal });
  } catch (error) {
    return lost(error);
  }
}

// Sends again what fails for a while.
export async function patiently(send, signal, waits) {
  for (let failures = 0; ; ) {
    try {
      return await send();
    } catch (error) {
      const { status, retryAfter } = error;
      if (status !== 429 && (!FOR_A_WHILE.includes(status) || ++failures === ATTEMPTS)) throw error;
      const seconds = retryAfter || 2 ** failures;
      waits(seconds, status);
      await pause(seconds, signal);
    }
  }
}

// Classifies texts through the stream, which waits where other requests would be refused. Returns
// the results and the digest of their model.
export async function stream(texts, options, signal) {
  const path = `classify/stream?${new URLSearchParams(options)}`;
  const body = texts.map((text, id) => `${JSON.stringify({ id, text })}\n`).join("");
  const response = await send(path, body, signal);
  const lines = (await response.text().catch(lost)).split("\n").filter(Boolean);
  if (!response.ok) throw problem(response, parsed(lines.join("\n")));
  const results = lines.map(parsed);
  // The service shuts down, or has no room for a line; a text has neither error.
  const failed = results.find((line) => line?.id === null || PASSING.includes(line?.error?.code));
  if (failed) throw new Problem("The service stopped", failed.error.message, { status: 503 });
  if (results.length !== texts.length || !results.every((line, id) => line?.id === id)) throw problem(response);
  for (const result of results) delete result.id;
  return { results, digest: response.headers.get("x-model-digest") };
}

// Several requests for one table must be answered by one model. Returns its digest; an answer to no
// text has none.
export function sameModel(digest, before, what) {
  if (before && digest && digest !== before) {
    const detail = `The service has loaded another model, which may judge differently. Classify the ${what} again.`;
    throw new Problem("Another model", detail);
  }
  return before ?? digest;
}

function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    setTimeout(resolve, seconds * 1_000);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
}

function lost(error) {
  if (error.name === "AbortError") throw error;
  throw new Problem("No answer", "The service cannot be reached. Is it running?");
}

function problem(response, answer) {
  const { status, headers } = response;
  const ours = !response.ok && answer?.code && answer.title && answer.detail;
  const [title, detail] = ours ? [answer.title, answer.detail] : NOT_OURS;
  return new Problem(title, detail, {
    status,
    requestId: headers.get("x-request-id") ?? "",
    retryAfter: Number(headers.get("retry-after")) || 0, // a proxy may send a date
  });
}

function stages(response) {
  const timing = response.headers.get("server-timing") ?? "";
  return Object.fromEntries(
    [...timing.matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, dur]) => [name, Number(dur)]),
  );
}

// Splits the texts into lists that the service accepts: not too many texts, and few enough tokens
// for one request's share of the queue.
export function* requests(texts, limits) {
  const mostTexts = Math.min(limits.max_texts, MOST_TEXTS);
  const mostCharacters = limits.max_queue_tokens / 4;
  let list = [];
  let characters = 0;
  for (const text of texts) {
    if (list.length && (list.length === mostTexts || characters + text.length > mostCharacters)) {
      yield list;
      list = [];
      characters = 0;
    }
    list.push(text);
    characters += text.length;
  }
  yield list;
}

export const url = (path) => new URL(path, document.baseURI).href;
