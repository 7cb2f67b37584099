// Receives webhooks, verifies them, and prints a line for each new event: node webhook.mjs ADDRESS:PORT
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const KEY = Buffer.from(process.env.SIGNALBOX_SECRET.replace(/^whsec_/, ""), "base64");
// A delivery has at most `bus.batch_bytes` (1 MiB) of events.
const MAX_BODY = 4 << 20;

// Whether the body was signed with our key in the last five minutes. The body must be the bytes as received.
function isGenuine(headers, body) {
  const sent = headers["webhook-timestamp"];
  if (!(Math.abs(Date.now() / 1000 - Number(sent)) < 300)) return false;
  const own = createHmac("sha256", KEY).update(`${headers["webhook-id"]}.${sent}.`).update(body).digest();
  // While a secret is being replaced, there are several signatures.
  return (headers["webhook-signature"] ?? "").split(" ").some((one) => {
    const other = Buffer.from(one.replace(/^v1,/, ""), "base64");
    return other.length === own.length && timingSafeEqual(own, other);
  });
}

// A delivery whose answer was lost is repeated. An application stores the ID in the transaction that handles the event, with
// a unique index, instead of in memory.
const handled = new Set();

function handle(event) {
  for (const gap of event.gap ?? []) console.log("missing", gap.first, gap.last, gap.reason);
  if (handled.has(event.id)) return;
  console.log(event.id, event.topic, event.type, event.url, JSON.stringify(event.data ?? null));
  handled.add(event.id);
}

async function receive(request) {
  const parts = [];
  let length = 0;
  for await (const part of request) {
    length += part.length;
    if (length > MAX_BODY) return 413;
    parts.push(part);
  }
  const body = Buffer.concat(parts);
  if (!isGenuine(request.headers, body)) return 401;
  for (const event of JSON.parse(body)) handle(event);
  // Answered after the events were handled: if this program fails before, the delivery is repeated.
  return 204;
}

const [address, port] = process.argv[2].split(":");
createServer(async (request, response) => {
  const status = await receive(request).catch(() => 500);
  response.writeHead(status).end();
}).listen(Number(port), address);
