// Calls the service with the client that openapi-generator generated for fetch.

import assert from "node:assert/strict";
import {
  ClassificationApi, Configuration, OperationsApi, ProblemFromJSON, ResponseError,
} from "./client/index.js";

const configuration = new Configuration({ basePath: process.argv[2] });
const api = new ClassificationApi(configuration);

const { results } = await api.classify({ classifyRequest: { inputs: ["I love this!", ""] } });
const [good, bad] = results;
assert("label" in good && good.label === "positive");
assert("error" in bad && bad.error.code === "empty_text");

const objects = [{ text: "worst service ever" }];
const [other] = (await api.classify({ classifyRequest: { inputs: objects } })).results;
assert("label" in other && other.label === "negative");

const refused = api.classify({ classifyRequest: { inputs: "hi", model: "none" } });
const error: unknown = await refused.catch((error: unknown) => error);
assert(error instanceof ResponseError);
assert.equal(ProblemFromJSON(await error.response.json()).code, "model_not_found");

const [tokens] = (await api.tokenize({ tokenizeRequest: { inputs: "hi" } })).results;
assert("tokens" in tokens);
assert.deepEqual(tokens.tokens, ["[CLS]", "hi", "[SEP]"]);

const lines = await api.classifyStream({ body: '{"id": 1, "text": "I love this!"}\n' });
assert.match(lines, /"label":"positive"/);

const operations = new OperationsApi(configuration);
assert.equal((await operations.checkReady()).status, "ready");
assert.equal((await operations.listModels()).models[0].name, "minilm-l6-tweet-sentiment");
assert((await operations.getInfo()).limits.maxInflightBytes > 0);
