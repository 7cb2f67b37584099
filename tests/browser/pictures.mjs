// Takes the screenshots of the documentation from a system that `signalbox up --demo` runs: `.ci/pictures` calls it.

import { spawn } from "node:child_process";
import path from "node:path";

import { base, go, shots, start, until, api, visit } from "./harness.mjs";

const program = (name) => path.join(process.env.SIGNALBOX_PROGRAMS, name);

// A rollout makes the numbers of a host and of the machine interesting. It starts when the charts of five minutes have filled.
const FILL_MS = 270_000;
const hosts = ["hello.localhost", "shop.localhost", "canary.localhost", "shop.localhost", "canary.localhost"];
let visits = 0;
// The rate of requests rises and falls, as that of people does.
let next;
function visitNext() {
    visit(hosts[visits++ % hosts.length]).catch(() => {});
    next = setTimeout(visitNext, 18 + 12 * Math.sin(Date.now() / 29_000) + 6 * Math.random());
}
visitNext();

const { browser, context } = await start();
const page = await context.newPage();
await page.goto(`${base}/dashboard/queues`);
await page.getByLabel("Token").fill(process.env.SIGNALBOX_TOKEN);
await page.getByRole("button", { name: "Log in" }).click();
await page.getByRole("heading", { name: "Queues", level: 1 }).waitFor();

async function shoot(name, target, height) {
    await page.setViewportSize({ width: 1400, height });
    await go(page, target);
    // Charts are drawn when their first points arrive, after the page itself.
    await page.waitForTimeout(3000);
    await page.screenshot({ path: path.join(shots, `${name}.png`) });
}

await page.waitForTimeout(FILL_MS);
const rollout = spawn(program("signalbox-demo"), ["canary", "good", "--calm-seconds", "15"], {
    cwd: process.env.SIGNALBOX_FOLDER,
    stdio: "ignore",
});
await until("the rollout to reach 25%", async () => {
    const { labels } = await api("GET", "/state-machines/canary/labels?state=at_quarter");
    return labels.length > 0;
});
await shoot("machine", "/dashboard/machines?name=canary", 760);
await shoot("host", "/dashboard/host?name=canary.localhost&range=5m", 900);
await shoot("overview", "/?range=5m", 900);

clearTimeout(next);
rollout.kill("SIGINT");
await browser.close();
