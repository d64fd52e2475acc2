// The service's own API, called relative to the page: it may be served under a prefix.

const KEY = "sentiment-api-key";
// More requests than the limits ask for: the first rows are there at once, Cancel wastes little,
// and a slow model keeps within its deadline.
const MOST_TEXTS = 200;
const LONGEST_ARGUMENT = 100_000; // Linux takes 131,072 bytes

// For as long as the tab is open.
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value.trim()),
};

// What went wrong, in words for the user.
export class Problem extends Error {
  constructor(title, message, { status = 0, requestId = "", retryAfter = "" } = {}) {
    super(message);
    Object.assign(this, { title, status, requestId, retryAfter });
  }
}

// The answer's document, the server's stages and the round trip, in milliseconds.
export async function call(path, body, signal) {
  const started = performance.now();
  const response = await send(path, body, signal);
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return {}; // of a proxy, perhaps
  });
  if (!response.ok || !Object.keys(answer).length) throw problem(response, answer);
  return { answer, stages: stages(response), roundTrip: performance.now() - started };
}

async function send(path, body, signal) {
  const headers = new Headers(body && { "content-type": "application/json" });
  if (apiKey.get()) headers.set("authorization", `Bearer ${apiKey.get()}`);
  const method = body ? "POST" : "GET";
  try {
    return await fetch(url(path), { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("No answer", "The service cannot be reached. Is it running?");
  }
}

function problem(response, { title, detail, request_id: requestId }) {
  const { status, headers } = response;
  return new Problem(title ?? "No readable answer", detail ?? "Something between has answered.", {
    status,
    requestId: requestId ?? headers.get("x-request-id") ?? "",
    retryAfter: headers.get("retry-after") ?? "",
  });
}

function stages(response) {
  const timing = response.headers.get("server-timing") ?? "";
  return Object.fromEntries(
    [...timing.matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, dur]) => [name, Number(dur)]),
  );
}

// The texts in lists that the service takes: few enough, and within a request's part of the queue.
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

// The command for a POSIX shell; a body that is too long for an argument goes in as a document.
export function curl(body) {
  const json = JSON.stringify(body);
  const lines = [`curl ${quote(url("classify"))}`, "-H 'content-type: application/json'"];
  if (apiKey.get()) lines.push('-H "authorization: Bearer $SENTIMENT_API_KEY"');
  if (json.length < LONGEST_ARGUMENT / 3) lines.push(`-d ${quote(json)}`);
  else lines.push(`--data-binary @- <<'JSON'\n${json}\nJSON`);
  return lines.join(" \\\n  ");
}

// Between single quotes a shell reads everything as it is, but for a single quote.
const quote = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

const url = (path) => new URL(path, document.baseURI).href;
