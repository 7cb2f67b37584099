// A large installation: thousands of hosts and labels, hundreds of queues, all created through the API, with traffic on. Every list finds, sorts and pages; nothing is hidden behind the end of a list.

import { furnish } from "./furnish.mjs";
import { api, base, check, go, server, shoot, token, until, visit } from "./harness.mjs";
import { ask } from "./questions.mjs";
import { sweep } from "./sweep.mjs";

const LARGE = { hosts: 1000, queues: 120, labels: 1000 };
export const VERY_LARGE = { hosts: 5000, queues: 500, labels: 10000 };
const PART = 500;
// The first load of a page, and of the overview with its scripts and styles, in bytes.
const MAX_PAGE = 2_000_000;
const MAX_FIRST_LOAD = 150_000;

// On a busy machine, a page whose data is not there in time; its stream replaces it.
export const expected = ["status of 503"];

const machine = `state_machines:
  onboarding:
    states:
      - gate: invited
        exit_condition: metadata.confirmed
        triggers: [{metadata: confirmed}]
        next: joined
      - gate: joined
`;

const name = (n) => `site-${String(n).padStart(4, "0")}`;

async function fill(app, { hosts, queues, labels }) {
    // Every instance has an address of its own; only the first of them answers.
    const instance = (n) => ({
        id: name(n),
        address: n === 0 ? app.address : `127.1.${n >> 8}.${n & 255}:9`,
        hostnames: [`${name(n)}.scale.test`],
        version_type_id: `v${n % 20}`,
    });
    for (let at = 0; at < hosts; at += PART) {
        await api("PUT", "/instances", Array.from({ length: PART }, (_, n) => instance(at + n)));
    }
    for (let n = 0; n < queues; n += 1) await api("PUT", `/queues/queue-${String(n).padStart(3, "0")}`, { pattern: `none:none:t${n}` });
    await api("PUT", "/queues/slow_jobs", { pattern: ".*:job:.*" });
    const messages = Array.from({ length: 120 }, (_, n) => ({ tenant: `t${n % 3}`, type: "job", name: `j${n}` }));
    await api("POST", "/messages", messages);
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/yaml" };
    const planned = await fetch(`${base}/state-machines/onboarding/plan`, { method: "POST", headers, body: machine });
    const { plan } = await planned.json();
    await api("POST", "/state-machines/onboarding/apply", { plan, map: {} });
    for (let at = 0; at < labels; at += PART) {
        const part = Array.from({ length: PART }, (_, n) => ({ name: `user-${at + n}`, metadata: {} }));
        await api("POST", "/state-machines/onboarding/labels", { labels: part });
    }
}

// The size of a page and how long it took, which is only reported: a test does not depend on the speed of the machine.
async function measured(target, headers) {
    const begin = performance.now();
    // A page whose data is not there in time, on a busy machine, is asked for again.
    const answer = await until(target, async () => {
        const answer = await fetch(base + target, { headers: { authorization: `Bearer ${token}`, ...headers } });
        check(answer.ok || answer.status === 503, `${target}: ${answer.status}`);
        return answer.ok && answer;
    });
    const { length } = await answer.text();
    console.log(`scale: ${target}: ${length} bytes in ${Math.round(performance.now() - begin)} ms`);
    return length;
}

export async function run(page, _context, size = LARGE) {
    const app = await server(() => 200);
    await fill(app, size);
    // The host below is one more.
    const all = (size.hosts + 1).toLocaleString("en");
    const last = { host: name(size.hosts - 1), label: `user-${size.labels - 1}` };
    // The last host by name loses its only instance, and is visited nevertheless.
    await api("PUT", "/instances/zz-shop?wait=30s", { address: "127.2.0.1:9", hostnames: ["zz-shop.scale.test"], version_type_id: "shop" });
    await api("DELETE", "/instances/zz-shop?wait=30s");
    const visits = setInterval(() => {
        visit(`${name(0)}.scale.test`).catch(() => {});
        visit("zz-shop.scale.test").catch(() => {});
    }, 50);

    await go(page, "/");
    await page.locator(".problem", { hasText: "zz-shop.scale.test has no instance." }).waitFor();
    await page.locator("#problem-count:not([hidden])").waitFor();
    await shoot(page, "scale-overview");

    await go(page, "/dashboard/host");
    await page.locator("#range", { hasText: `1–50 of ${all}` }).waitFor();
    await page.locator("#next-page").click();
    await page.locator("#range", { hasText: `51–100 of ${all}` }).waitFor();
    await page.locator("#previous-page").click();
    await page.locator("#range", { hasText: `1–50 of ${all}` }).waitFor();
    await page.getByRole("searchbox").fill("zz-SHOP");
    await page.keyboard.press("Enter");
    await page.getByText("no instance").waitFor();
    await shoot(page, "scale-hosts");
    await go(page, "/dashboard/host");
    await page.getByRole("columnheader", { name: "requests/s" }).getByRole("link").press("Enter");
    await until("the busiest host", async () => {
        const first = await page.locator("tbody tr td:first-child a").first().innerText().catch(() => "");
        return ["site-0000.scale.test", "zz-shop.scale.test", "site-0020.scale.test"].includes(first);
    });

    await go(page, `/dashboard/instances?search=${last.host}`);
    await page.getByRole("link", { name: last.host, exact: true }).press("Enter");
    await page.getByRole("heading", { name: last.host, level: 1 }).waitFor();

    // Sorted by depth from the start, whatever its name is.
    await go(page, "/dashboard/queues");
    const first = page.locator("tbody tr").first();
    await first.getByRole("link", { name: "slow_jobs" }).waitFor();
    await page.locator("#range", { hasText: `of ${size.queues + 1}` }).waitFor();
    await shoot(page, "scale-queues");

    await go(page, "/dashboard/machines?name=onboarding");
    await page.locator("#all-labels", { hasText: `${size.labels}` }).waitFor();
    await page.getByLabel("Name prefix").fill(last.label);
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: last.label }).waitFor();
    // A large number does not cover the kind of its state.
    const apart = await page.locator("a.state").first().evaluate((state) => {
        const [word, count] = [".word", ".count"].map((name) => state.querySelector(name).getBoundingClientRect());
        return word.right <= count.left;
    });
    check(apart, "the number of labels covers the kind of the state");
    await shoot(page, "scale-machine");

    const { pages, remove } = await furnish();
    pages.onboarding = "/dashboard/machines?name=onboarding";
    pages["slow-jobs"] = "/dashboard/queues?name=slow_jobs";
    for (const target of Object.values(pages)) check((await measured(target)) < MAX_PAGE, `${target} is too large`);
    // Takes a minute; of the smaller installation, the suite "everywhere" sweeps every page.
    if (size === VERY_LARGE) await sweep(page, pages, "scale-page-", [], ["light"]);
    await ask(page);
    await go(page, "/");
    let loaded = await measured("/");
    for (const asset of (await page.content()).match(/\/dashboard\/assets\/[^"]+/g)) loaded += await measured(asset);
    check(loaded < MAX_FIRST_LOAD, `the first load of the overview has ${loaded} bytes`);
    await remove();
    clearInterval(visits);
    app.stop();
}
