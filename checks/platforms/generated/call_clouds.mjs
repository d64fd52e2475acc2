// Azure's clients and AWS' client for JavaScript.
import assert from "node:assert/strict";
import { ComprehendClient, BatchDetectSentimentCommand, DetectSentimentCommand } from "@aws-sdk/client-comprehend";
import { AzureKeyCredential, TextAnalysisClient } from "@azure/ai-language-text";
import { TextAnalyticsClient } from "@azure/ai-text-analytics";

const [url, key] = process.argv.slice(2);
const text = "I love this! 👨‍👩‍👧\n\nWorst service ever.";
const insecure = { allowInsecureConnection: true };

function documents(answers) {
  const [sound, bad] = answers;
  assert.equal(sound.sentiment, "mixed");
  for (const { offset, length, text: sentence } of sound.sentences) {
    assert.equal(text.slice(offset, offset + length), sentence);
  }
  assert.equal(bad.error.code, "EmptyText");
}

const later = new TextAnalysisClient(url, new AzureKeyCredential(key), insecure);
// Unless it is told, this client asks for clusters of characters, which JavaScript cannot slice.
const units = { stringIndexType: "Utf16CodeUnit" };
documents(await later.analyze("SentimentAnalysis", [text, ""], "en", units));
await assert.rejects(
  later.analyze("SentimentAnalysis", [text], "en", { includeOpinionMining: true }),
  { code: "InvalidRequest", message: /opinionMining is not done here/ },
);
const earlier = new TextAnalyticsClient(url, new AzureKeyCredential(key), insecure);
documents(await earlier.analyzeSentiment([text, ""], "en"));
const wrong = new TextAnalyticsClient(url, new AzureKeyCredential("another"), insecure);
await assert.rejects(wrong.analyzeSentiment([text]), { statusCode: 401 });

function comprehend(accessKeyId) {
  const credentials = { accessKeyId, secretAccessKey: "any" };
  return new ComprehendClient({ region: "us-east-1", endpoint: url, credentials });
}

const LanguageCode = "en";
const one = await comprehend(key).send(new DetectSentimentCommand({ Text: text, LanguageCode }));
assert.equal(one.Sentiment, "MIXED");
const batch = new BatchDetectSentimentCommand({ TextList: [text, " "], LanguageCode });
const { ResultList: results, ErrorList: errors } = await comprehend(key).send(batch);
assert.deepEqual([results[0].Index, errors[0].Index], [0, 1]);
await assert.rejects(
  comprehend(key).send(new DetectSentimentCommand({ Text: " ", LanguageCode })),
  { name: "InvalidRequestException" },
);
await assert.rejects(
  comprehend("another").send(new DetectSentimentCommand({ Text: text, LanguageCode })),
  { name: "UnrecognizedClientException" },
);
