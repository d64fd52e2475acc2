// Calls the service as the examples of @huggingface/inference do.

import assert from "node:assert/strict";
import { InferenceClient, InferenceClientProviderApiError } from "@huggingface/inference";

const client = new InferenceClient().endpoint(process.argv[2]);

const [best] = await client.textClassification({ inputs: "I like you. I love you." });
assert.equal(best.label, "positive");
const parameters = { top_k: 1, function_to_apply: "none" as const };
const ranked = await client.textClassification({ inputs: "I like you.", parameters });
assert.equal(ranked.length, 1);

const refused = client.zeroShotClassification({
  inputs: "Hi, I would like to get reimbursed!",
  parameters: { candidate_labels: ["refund", "legal", "faq"] },
});
await assert.rejects(refused, (error: Error) => {
  assert(error instanceof InferenceClientProviderApiError);
  assert.match(error.message, /zero-shot classification, which is not done here/);
  return true;
});
