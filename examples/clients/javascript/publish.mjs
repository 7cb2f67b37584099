// Publishes one event and prints its ID: node publish.mjs TOPIC KEY EVENT
//
// KEY names the operation, for example order-7-paid. Every attempt carries it, so the event is not published twice if the
// response to the first attempt was lost.
import { setTimeout as sleep } from "node:timers/promises";

const URL = process.env.SIGNALBOX_URL ?? "http://127.0.0.1:8081";
const TOKEN = process.env.SIGNALBOX_TOKEN;
const ATTEMPTS = 9;

export async function publish(topic, key, event) {
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json", "idempotency-key": key };
  let failure;
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    let pause = (0.5 + Math.random() / 2) * 2 ** attempt;
    try {
      const signal = AbortSignal.timeout(10_000);
      const answer = await fetch(`${URL}/topics/${topic}`, { method: "POST", headers, body: event, signal });
      if (answer.ok) return answer.headers.get("x-signalbox-event-id");
      failure = new Error(await answer.text());
      // Other errors stay the same if the request is repeated.
      if (![408, 429, 500, 502, 503, 504].includes(answer.status)) break;
      pause = Number(answer.headers.get("retry-after") ?? pause);
    } catch (error) {
      // The event may have been accepted; the key makes the repetition safe.
      failure = error;
    }
    await sleep(pause * 1000);
  }
  throw failure;
}

try {
  console.log(await publish(...process.argv.slice(2)));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
