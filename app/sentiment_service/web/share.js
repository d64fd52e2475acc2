// What the user can take elsewhere: the request to POST /classify as code, and a link to the page
// with the text.

import { apiKey, url } from "./api.js";

const LONGEST_LINK = 8_000; // characters; some programs cut longer ones
const LONGEST_ARGUMENT = 100_000; // bytes; Linux allows 131,072

// The code of the request. `language` is a key of LANGUAGES.
export const code = (language, body) => LANGUAGES[language](JSON.stringify(body));

const LANGUAGES = { curl, python, javascript };

// For a POSIX shell. A body that is too long for an argument goes to standard input.
function curl(json) {
  const lines = [`curl ${quote(url("classify"))}`, "-H 'content-type: application/json'"];
  if (apiKey.get()) lines.push('-H "authorization: Bearer $SENTIMENT_API_KEY"');
  if (json.length < LONGEST_ARGUMENT / 3) lines.push(`-d ${quote(json)}`);
  else lines.push(`--data-binary @- <<'JSON'\n${json}\nJSON`);
  return lines.join(" \\\n  ");
}

// A single quote is the only character that needs escaping between single quotes.
const quote = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

// Needs only the standard library. The body has strings, lists and objects only, so its JSON is also
// a Python literal.
function python(json) {
  const key = apiKey.get() && `\n    "authorization": "Bearer " + os.environ["SENTIMENT_API_KEY"],`;
  return `import json${key && "\nimport os"}
from urllib.request import Request, urlopen

body = ${json}
headers = {
    "content-type": "application/json",${key}
}
request = Request(${JSON.stringify(url("classify"))}, json.dumps(body).encode(), headers)
with urlopen(request) as answer:
    for result in json.load(answer)["results"]:
        print(result)
`;
}

function javascript(json) {
  const key = apiKey.get() && "\n    authorization: `Bearer ${process.env.SENTIMENT_API_KEY}`,";
  return `const answer = await fetch(${JSON.stringify(url("classify"))}, {
  method: "POST",
  headers: {
    "content-type": "application/json",${key}
  },
  body: JSON.stringify(${json}),
});
for (const result of (await answer.json()).results) console.log(result);
`;
}

// The page's address with the text and the options that are on; none if it is too long.
// Browsers do not send the fragment.
export function link(text, options) {
  const fragment = new URLSearchParams({ text, ...Object.fromEntries(options.map((name) => [name, 1])) });
  const address = `${url("")}#${fragment}`;
  return address.length > LONGEST_LINK ? "" : address;
}

// What the fragment of the page's address has.
export function linked() {
  const { text, ...options } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return { text, options: Object.keys(options) };
}
