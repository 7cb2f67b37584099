// Watches the events of a topic as they are accepted, and prints a line of JSON for each: node watch.mjs TOPIC POSITION_FILE
//
// The position is stored after each event, so the next start continues where this one ended.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const URL = process.env.SIGNALBOX_URL ?? "http://127.0.0.1:8081";
const TOKEN = process.env.SIGNALBOX_TOKEN;
const [topic, position] = process.argv.slice(2);

// Yields server-sent events. A message may have only an ID: then no event matched for a while.
async function* messages(stream) {
  let text = "";
  let message = {};
  for await (const part of stream.pipeThrough(new TextDecoderStream())) {
    const lines = (text + part).split("\n");
    text = lines.pop();
    for (const line of lines) {
      const [name, ...value] = line.split(": ");
      if (name) {
        message[name] = value.join(": ");
      } else {
        yield message;
        message = {};
      }
    }
  }
}

async function connect() {
  const headers = { authorization: `Bearer ${TOKEN}` };
  if (existsSync(position)) headers["last-event-id"] = readFileSync(position, "utf8");
  const silence = new AbortController();
  // A stream without events sends a comment every 15 seconds.
  const timer = setTimeout(() => silence.abort(), 45_000);
  try {
    const answer = await fetch(`${URL}/events?topic=${topic}`, { headers, signal: silence.signal });
    if (!answer.ok) {
      // Other errors stay the same if the request is repeated.
      if (answer.status === 429 || answer.status >= 500) return;
      throw Object.assign(new Error(await answer.text()), { final: true });
    }
    for await (const { event, data, id } of messages(answer.body)) {
      timer.refresh();
      if (event === "end" && data.includes("token_revoked")) {
        throw Object.assign(new Error("the token was revoked"), { final: true });
      }
      if (event === "gap") console.error("these events are no longer in the log:", data);
      if (!event && data) console.log(data);
      if (id) {
        writeFileSync(`${position}.new`, id);
        renameSync(`${position}.new`, position);
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

while (true) {
  try {
    await connect();
  } catch (error) {
    if (error.final) {
      console.error(error.message);
      process.exit(1);
    }
  }
  await sleep(1000);
}
