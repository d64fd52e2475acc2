// Calls the service with openapi-fetch and the types that openapi-typescript generated.

import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { paths } from "./types.js";

const client = createClient<paths>({ baseUrl: process.argv[2] });

const { data } = await client.POST("/classify", { body: { inputs: ["I love this!", ""] } });
const [good, bad] = data!.results;
assert("label" in good && good.label === "positive");
assert("error" in bad && bad.error.code === "empty_text");

const { error, response } = await client.POST("/classify", { body: { inputs: "hi", model: "none" } });
assert.deepEqual([response.status, error?.code], [404, "model_not_found"]);

const tokenized = await client.POST("/tokenize", { body: { inputs: "hi" } });
const [tokens] = tokenized.data!.results;
assert("tokens" in tokens);
assert.deepEqual(tokens.tokens, ["[CLS]", "hi", "[SEP]"]);

const lines = await client.POST("/classify/stream", {
  body: '{"id": 1, "text": "I love this!"}\n',
  headers: { "content-type": "application/x-ndjson" },
  bodySerializer: (body) => body,
  parseAs: "text",
});
assert.match(lines.data!, /"label":"positive"/);

assert.equal((await client.GET("/health/ready")).data?.status, "ready");
const listed = await client.GET("/models");
const { name } = listed.data!.models[0];
assert.equal(name, "minilm-l6-tweet-sentiment");
