// Charts show what the API returns, at every point. A time range is in the address, a chart without values says so, and all
// charts of a page share one cursor, which works by keyboard.

import { api, check, go, server, shoot, until, visit } from "./harness.mjs";

const REQUESTS = 90;
const clock = (text) => text.split(":").reduce((sum, part) => 60 * sum + Number(part), 0);

// What a screen reader gets at the cursor: the time, and the value of each line.
async function spoken(page) {
    const text = await page.locator("body > span[role=status]").textContent();
    const [, time, values] = /^([\d:]+): (.*)$/.exec(text) ?? [];
    check(time, `values at a time, not ${JSON.stringify(text)}`);
    const number = (one) => {
        const [, shown] = / (–|[\d.,]+)(?: \S+)?$/.exec(one) ?? [];
        check(shown, `a value, not ${one}`);
        return shown === "–" ? null : Number(shown.replaceAll(",", ""));
    };
    return { time, at: clock(time), values: values.split(", ").map(number) };
}

// All points of a chart, newest first.
async function points(page, id) {
    const chart = page.locator(`#chart-${id}`);
    const all = [];
    await chart.press("End");
    for (;;) {
        const point = await spoken(page);
        if (all.length && all.at(-1).time === point.time) break;
        all.push(point);
        await chart.press("ArrowLeft");
    }
    await chart.press("Escape");
    return all;
}

// How many things a line of rates has counted, if each rate is that of the time since the point before it.
function counted(all, line) {
    return all.slice(0, -1).reduce((sum, point, place) => sum + (point.values[line] ?? 0) * (point.at - all[place + 1].at), 0);
}

const near = (a, b, tolerance, what) => check(Math.abs(a - b) <= tolerance, `${what}: ${a} is drawn, the API has ${b}`);

async function queue(page) {
    await api("PUT", "/queues/drawn", { pattern: ".*:drawn:.*" });
    const publish = (count) =>
        api("POST", "/messages", Array.from({ length: count }, (_, n) => ({ tenant: `t${n % 3}`, type: "drawn", name: `m${n}` })));
    await publish(5);
    await go(page, "/dashboard/queues?name=drawn");
    // The rates begin after the first reading of the queue.
    await page.locator('#chart-depth[aria-label^="waiting 5,"]').waitFor();
    await publish(40);
    const { messages } = await api("POST", "/queues/drawn/pull", { max: 12 });
    await api("POST", "/queues/drawn/ack", { receipts: messages.slice(0, 10).map((message) => message.receipt) });
    const { waiting, in_flight } = (await api("GET", "/queues/drawn")).messages;
    check(waiting === 33 && in_flight === 2, `33 wait and 2 are in flight, not ${waiting} and ${in_flight}`);
    await page.locator(`#chart-depth[aria-label="waiting ${waiting}, in flight ${in_flight}, delayed 0"]`).waitFor();
    const rates = await points(page, "rates");
    near(counted(rates, 0), 40, 2, "received messages");
    near(counted(rates, 1), 10, 2, "acknowledged messages");
    const depths = await points(page, "depth");
    check(depths[0].values.join() === "33,2,0" && depths.some(({ values }) => values[0] === 5), JSON.stringify(depths.slice(0, 5)));
    const { tenants } = await api("GET", "/queues/drawn/tenants");
    const oldest = Math.max(...tenants.map((tenant) => tenant.oldest_age_ms ?? 0)) / 1000;
    const [age] = await points(page, "age");
    check(age.values[0] > 0 && age.values[0] <= oldest, `an age of ${age.values[0]} is drawn, the API has ${oldest}`);
}

async function cursor(page) {
    const times = () => page.locator(".charts .u-legend tr:first-child .u-value").allInnerTexts();
    const newest = (await times())[0];
    const depth = page.locator("#chart-depth");
    await depth.press("End");
    await depth.press("ArrowLeft");
    const { time } = await spoken(page);
    check(time !== newest, "the cursor has moved");
    check((await times()).join() === [time, time, time].join(), `all charts show ${time}, not ${await times()}`);
    // Updates of the page do not move it.
    const shown = Number(await page.locator("#page").getAttribute("data-shown"));
    await until("an update of the page", async () => Number(await page.locator("#page").getAttribute("data-shown")) > shown);
    check((await times()).join() === [time, time, time].join(), `all charts still show ${time}, not ${await times()}`);
    await depth.press("Escape");
    check(!(await times()).includes(time), "the newest values are shown again");
    // The mouse moves the cursor of all charts, too.
    const { x, y, width, height } = await page.locator("#chart-age .u-over").boundingBox();
    await page.mouse.move(x + width - 2, y + height / 2);
    await page.mouse.move(x + width / 2, y + height / 2);
    await until("one time in all legends", async () => new Set(await times()).size === 1 && (await times())[0] !== newest);
    await page.mouse.move(0, 0);
}

async function ranges(page) {
    const current = page.locator(".ranges [aria-current]");
    const range = () => new URL(page.url()).searchParams.get("range");
    check((await current.innerText()) === "15m" && range() === null, "15 minutes are shown without a choice");
    await page.locator(".ranges").getByRole("link", { name: "1h", exact: true }).press("Enter");
    await page.waitForURL((url) => url.searchParams.get("range") === "1h");
    await page.locator(".ranges [aria-current]", { hasText: /^1h$/ }).waitFor();
    await page.locator("#chart-depth canvas").waitFor();
    await page.goBack();
    await page.locator(".ranges [aria-current]", { hasText: /^15m$/ }).waitFor();
    await go(page, "/dashboard/queues?name=drawn&range=5m");
    check((await current.innerText()) === "5m", "the range is in the address");
    const offered = await page.locator(".ranges a").allInnerTexts();
    check(offered.join() === "5m,15m,1h,6h", `a queue has a history of six hours, not ${offered}`);
    // What the address asks for is not offered, so the usual range is shown.
    await go(page, "/dashboard/queues?name=drawn&range=7d");
    check((await current.innerText()) === "15m", "an unknown range is the usual one");
}

export async function run(page) {
    const app = await server(() => 200);
    const register = (id, address, host) =>
        api("PUT", `/instances/${id}?wait=30s`, { address, hostnames: [host], version_type_id: id });
    await register("drawn-1", app.address, "drawn.test");
    await register("idle-1", "127.3.0.2:9", "idle.test");
    const start = Math.floor(Date.now() / 1000) - 60;
    for (let n = 0; n < REQUESTS; n += 1) check((await visit("drawn.test")) === 200, "the host is served");

    await queue(page);
    await cursor(page);
    await ranges(page);

    // The requests of a version type, as its history has them.
    await go(page, "/dashboard/host?name=drawn.test");
    const history = async () => (await api("GET", `/stats/version_type/drawn-1/history?start=${start}&end=${start + 600}&step=10`)).map(([, count]) => count);
    await until("all requests in the history", async () => (await history()).reduce((sum, count) => sum + (count ?? 0), 0) === REQUESTS);
    await until("all requests in the chart", async () => Math.abs(counted(await points(page, "traffic"), 0) - REQUESTS) <= 2);
    const drawn = (await points(page, "traffic")).map(({ values }) => values[0]).filter((rate) => rate).reverse();
    const wanted = (await history()).filter((count) => count).map((count) => count / 10);
    check(drawn.length === wanted.length && drawn.every((rate, place) => Math.abs(rate - wanted[place]) <= 0.06), `${drawn} are drawn, the API has ${wanted}`);

    // The response times of the instance, by minute. The last minute is not complete.
    await go(page, "/dashboard/instances?name=drawn-1");
    const latency = await api("GET", `/stats/instance/drawn-1/latency?start=${start}&end=${start + 600}`);
    check(latency.count === REQUESTS, `the API has ${latency.count} responses`);
    // A rate is shown with one decimal, and a point is a minute; the requests were in at most two.
    await until("all responses in the chart", async () => Math.abs(counted(await points(page, "responses"), 0) - REQUESTS) <= 7);
    const times = (await points(page, "latency")).map(({ values }) => values).filter(([p50]) => p50 !== null);
    for (const [line, name] of ["p50_ms", "p95_ms", "p99_ms"].entries()) {
        const [low, high] = [Math.min, Math.max].map((pick) => pick(...times.map((values) => values[line])));
        // The percentile of all minutes is between those of each minute, except for the rounding: above 100 to whole ms.
        const rounding = high < 100 ? 0.1 : 0.5;
        check(low - rounding <= latency[name] && latency[name] <= high + rounding, `${name} of ${low} to ${high} is drawn, the API has ${latency[name]}`);
    }
    await shoot(page, "instance");

    // Without requests there are no response times, but there is a rate: zero.
    await go(page, "/dashboard/instances?name=idle-1");
    await page.locator("#chart-latency[data-empty] canvas").waitFor();
    await page.locator("#chart-responses:not([data-empty]) canvas").waitFor();
    const empty = await page.locator("#chart-latency").evaluate((chart) => getComputedStyle(chart, "::before").content);
    check(empty === '"No data in this range"', empty);
    for (const instance of ["drawn-1", "idle-1"]) await api("DELETE", `/instances/${instance}`);
    for (const host of ["drawn.test", "idle.test"]) await api("DELETE", `/hosts/${host}`);
    await api("DELETE", "/queues/drawn");
    app.stop();
}
