// Pulls messages from a queue and posts each to an HTTP address: node worker.mjs QUEUE TARGET CONCURRENCY
//
// 2xx acknowledges a message. Any other answer returns it to the queue with a delay. After SIGTERM the worker finishes the
// messages that it has, and ends.
import { setTimeout as sleep } from "node:timers/promises";

const URL = process.env.SIGNALBOX_URL ?? "http://127.0.0.1:8081";
const TOKEN = process.env.SIGNALBOX_TOKEN;
const [queue, target, concurrency] = process.argv.slice(2);

async function call(operation, body) {
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
  const request = { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) };
  const answer = await fetch(`${URL}/queues/${queue}${operation}`, { ...request, signal: AbortSignal.timeout(30_000) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function handle(message) {
  // The ID is the same in every attempt, so the target can recognize a repetition.
  const headers = { "content-type": "application/json", "idempotency-key": String(message.id) };
  const answer = await fetch(target, { method: "POST", headers, body: JSON.stringify(message) });
  if (!answer.ok) throw new Error(`${target} answered ${answer.status}`);
}

const receipts = new Set();

async function settle(message) {
  const { id, receipt } = message;
  receipts.add(receipt);
  try {
    const failure = await handle(message).catch((error) => error);
    if (failure) {
      console.error(`${id} failed: ${failure.message}`);
      await call("/nack", { receipts: [receipt], delay_seconds: 1 });
    } else {
      await call("/ack", { receipts: [receipt] });
    }
  } catch (error) {
    // The lease expires, and the message is handed out again.
    console.error(`${id} was not settled: ${error.message}`);
  }
  receipts.delete(receipt);
}

let ending = false;
process.on("SIGTERM", () => (ending = true));

// Extends the leases of all messages that are being handled, so that no other worker receives them.
const { lease_seconds } = await call("");
const heartbeat = setInterval(() => {
  if (receipts.size === 0) return;
  call("/extend", { receipts: [...receipts], lease_seconds }).catch((error) => console.error(error.message));
}, (lease_seconds * 1000) / 3);

const working = new Set();
while (!ending) {
  // Pull only what can be handled immediately: the lease of a message begins with the pull.
  const slots = Number(concurrency) - working.size;
  if (slots === 0) {
    await Promise.race(working);
    continue;
  }
  try {
    const { messages } = await call("/pull", { max: slots, wait_seconds: 5 });
    for (const message of messages) {
      const work = settle(message).then(() => working.delete(work));
      working.add(work);
    }
  } catch (error) {
    console.error(`pull failed: ${error.message}`);
    await sleep(1000);
  }
}
await Promise.all(working);
clearInterval(heartbeat);
