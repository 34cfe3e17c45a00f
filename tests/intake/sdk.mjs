// The npm client of the public trigger API, unchanged, against our service. Prints one JSON object.
import { batch, configure, idempotencyKeys, runs, tasks } from "@trigger.dev/sdk";
import { apiClientManager } from "@trigger.dev/core/v3";

const [url, secretKey] = process.argv.slice(2);
configure({ baseURL: url, secretKey });
const api = apiClientManager.clientOrThrow();
const report = async (id, what, body) => {
  const answer = await fetch(`${url}/api/v1/runs/${id}/${what}`, {
    method: "POST",
    headers: { authorization: `Bearer ${secretKey}`, "content-type": "application/json" },
    body: JSON.stringify(body ?? {}),
  });
  return answer.json();
};
const failure = async (work) => {
  try {
    await work();
    return "no error";
  } catch (error) {
    return { status: error.status, name: error.name, message: error.message };
  }
};

const seen = {};
const first = await tasks.trigger("send/mail", { to: "ann", big: 12345678901234567890n }, {
  idempotencyKey: "order-1", tags: ["a", "b"], metadata: { n: 1 }, machine: "small-1x", maxAttempts: 3, ttl: "1h",
});
const again = await tasks.trigger("send/mail", { to: "ann", big: 12345678901234567890n }, { idempotencyKey: "order-1" });
seen.same = first.id === again.id;
seen.token = typeof first.publicAccessToken === "string";
const run = await runs.retrieve(first.id);
seen.run = { status: run.status, tags: run.tags, metadata: run.metadata, key: run.idempotencyKey, to: run.payload.to,
  task: run.taskIdentifier, isQueued: run.isQueued, created: run.createdAt instanceof Date };
seen.other = await failure(() => tasks.trigger("send/mail", { to: "bob" }, { idempotencyKey: "order-1" }));
seen.missing = await failure(() => runs.retrieve("run_nosuchrun"));
seen.ttl = await failure(() => tasks.trigger("t", {}, { idempotencyKey: "x", idempotencyKeyTTL: "soon" }));

const large = { text: "x".repeat(300_000), list: [] };
const packet = await tasks.trigger("large", large, { idempotencyKey: "large" });
const packetAgain = await tasks.trigger("large", large, { idempotencyKey: "large" });
seen.packet = { same: packet.id === packetAgain.id, length: (await runs.retrieve(packet.id)).payload.text.length };

const items = Array.from({ length: 6 }, (_, n) => ({ payload: { n }, options: { idempotencyKey: `b${n % 3}` } }));
for (const item of items) item.payload.n %= 3;
const opened = await tasks.batchTrigger("job", items, { idempotencyKey: "batch-1" });
const openedAgain = await tasks.batchTrigger("job", items, { idempotencyKey: "batch-1" });
const found = await batch.retrieve(opened.batchId);
seen.batch = { same: opened.batchId === openedAgain.batchId, count: found.runCount,
  distinct: new Set(found.runs).size, status: found.status };

const listed = [];
for await (const one of runs.list({ limit: 2, taskIdentifier: ["job"] })) listed.push(one.id);
seen.list = { count: listed.length, distinct: new Set(listed).size };
seen.byTag = (await runs.list({ tag: "a" })).data.length;

await api.addTags(first.id, { tags: ["c"] });
seen.metadata = (await api.updateRunMetadata(first.id, {
  operations: [{ type: "increment", key: "n", value: 4 }, { type: "set", key: "$.deep.x", value: [1] }],
})).metadata;

const delayed = await tasks.trigger("later", { a: 1 }, { delay: "1h" });
seen.delayed = (await runs.retrieve(delayed.id)).status;
seen.rescheduled = (await runs.reschedule(delayed.id, { delay: "2h" })).delayedUntil instanceof Date;
await runs.cancel(delayed.id);
await runs.cancel(delayed.id);
seen.canceled = (await runs.retrieve(delayed.id)).status;
seen.replayed = (await runs.replay(first.id)).id !== first.id;

const states = [];
const following = (async () => {
  for await (const state of runs.subscribeToRun(first.id)) {
    states.push(state.status);
    if (state.isCompleted) seen.followedOutput = state.output;
  }
})();
await report(first.id, "start");
await new Promise((done) => setTimeout(done, 600));
await report(first.id, "complete", { output: { done: true } });
await following;
seen.followed = states.at(-1);
seen.polled = (await runs.poll(first.id, { pollIntervalMs: 50 })).output;

const failing = await tasks.trigger("fails", {}, { idempotencyKey: "f" });
await report(failing.id, "fail", { error: "out of luck" });
const retried = await tasks.trigger("fails", {}, { idempotencyKey: "f" });
seen.freed = retried.id !== failing.id;
seen.error = (await runs.retrieve(failing.id)).error.message;
const key = await idempotencyKeys.create("r", { scope: "global" });
const held = await tasks.trigger("reset", {}, { idempotencyKey: key });
await idempotencyKeys.reset("reset", key);
seen.reset = (await tasks.trigger("reset", {}, { idempotencyKey: key })).id !== held.id;
console.log(JSON.stringify(seen));
