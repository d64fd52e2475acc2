// The panel of the answer, and what says how far it is: progress, errors, words for screen readers.

import { apiKey } from "./api.js";
import { asSentence, count, element, number } from "./view.js";

export const $ = (id) => document.getElementById(id);

export function show(...parts) {
  $("result").replaceChildren(element("article", { className: "card" }, ...parts));
  reveal();
}

// On a phone the answer is below the form.
function reveal() {
  const used = navigator.userActivation?.hasBeenActive ?? true; // the page opens at its top
  if (used && matchMedia("(max-width: 52rem)").matches) $("answer").scrollIntoView({ block: "nearest" });
}

// Announces the words to screen readers.
export function say(words) {
  $("status").textContent = words;
}

export function clear() {
  $("problem").replaceChildren();
  $("missing").textContent = "";
  say("");
}

export function busy(is) {
  $("answer").ariaBusy = String(is);
  $("cancel").hidden = !is;
  if (!is) $("progress").hidden = true;
}

export const progress = (done, all) =>
  advance(all > 1 ? done / all : undefined, `${number.format(done)} of ${count(all, "text")}`);

// Without a part of the whole, the bar is an animation.
export function advance(part, words) {
  $("progress").hidden = false;
  $("done").textContent = words;
  if (part === undefined) $("bar").removeAttribute("value");
  else $("bar").value = part;
}

// Says why the next try comes later.
export function waits(seconds, status) {
  const why = status ? "The service is busy" : "No answer";
  $("done").textContent = `${why}, next try in ${count(seconds, "second")}`;
  say($("done").textContent);
}

export function fail({ title, status, requestId, retryAfter, message }) {
  const said = status === 401 ? keyWanted() : message;
  const wait = retryAfter ? ` Try again in ${count(retryAfter, "second")}.` : "";
  const reference = [status && `HTTP ${status}`, requestId && `request ${requestId}`];
  $("problem").replaceChildren(
    element("strong", { textContent: title ?? "The page has an error" }),
    element("p", {}, asSentence(said), wait),
    element("p", { className: "note" }, reference.filter(Boolean).join(" · ")),
  );
  reveal();
  if (status === 401) {
    $("key-field").hidden = false;
    $("key").select();
  }
}

const keyWanted = () =>
  apiKey.get()
    ? "This API key is not accepted. Enter another, below the text"
    : "Enter an API key for this service, below the text";

export async function copied(words) {
  try {
    await navigator.clipboard.writeText(words);
    say("Copied");
    return true;
  } catch {
    return false; // without TLS, browsers deny access to the clipboard
  }
}
