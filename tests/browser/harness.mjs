// What the tests of the pages have in common: a browser, the system's API, and applications and receivers of our own.

import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

const { chromium } = createRequire(path.join(process.env.SIGNALBOX_BROWSER_MODULES, "x"))("playwright-core");

export const base = process.env.SIGNALBOX_ADMIN;
export const token = process.env.SIGNALBOX_TOKEN;
export const shots = process.env.SIGNALBOX_SHOTS;
const edge = new URL(process.env.SIGNALBOX_EDGE);

// Far more than anything needs: it guards against a hang on a crowded machine.
export const PATIENCE = 60000;

export function check(condition, what) {
    if (!condition) throw new Error(what);
}

// A request to the API with the root token; fails unless it is answered with 2xx.
export async function api(method, target, body, as = token) {
    const headers = { authorization: `Bearer ${as}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    const answer = await fetch(base + target, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    check(answer.ok, `${method} ${target}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : null;
}

// Asks again until `look` gives something; `what` is for the message when it never does.
export async function until(what, look) {
    const deadline = Date.now() + PATIENCE;
    let last;
    while (Date.now() < deadline) {
        last = await look();
        if (last) return last;
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`never happened: ${what} (at last: ${JSON.stringify(last)})`);
}

// A server that answers with the status that `decide` says of the request, and with what `body` says.
export async function server(decide, body = () => "ok") {
    const listening = http.createServer((request, response) => {
        request.resume();
        request.on("end", () => {
            response.statusCode = decide(request);
            response.end(body(request));
        });
    });
    await new Promise((resolve) => listening.listen(0, "127.0.0.1", resolve));
    const { port } = listening.address();
    return {
        address: `127.0.0.1:${port}`,
        url: `http://127.0.0.1:${port}/events`,
        stop: () => (listening.closeAllConnections(), listening.close()),
    };
}

// A request at the edge; its status.
export function visit(host) {
    return new Promise((resolve, reject) => {
        const request = http.get({ host: edge.hostname, port: edge.port, path: "/", headers: { host } }, (answer) => {
            answer.resume();
            answer.on("end", () => resolve(answer.statusCode));
        });
        request.on("error", reject);
    });
}

export async function start() {
    const browser = await chromium.launch({
        executablePath: process.env.SIGNALBOX_CHROMIUM || "/usr/bin/chromium",
        // Root in a container has no other way; nothing foreign is loaded.
        args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        timeout: 2 * PATIENCE,
    });
    const context = await browser.newContext({ viewport: { width: 1100, height: 760 }, colorScheme: "light" });
    context.setDefaultTimeout(PATIENCE);
    return { browser, context };
}

// A tab that notes whatever a page should not do.
export async function open(context) {
    const page = await context.newPage();
    const faults = [];
    page.on("console", (message) => {
        if (["error", "warning"].includes(message.type())) faults.push(`console: ${message.text()}`);
    });
    page.on("pageerror", (error) => faults.push(`script: ${error.stack}`));
    page.on("request", (request) => {
        const url = new URL(request.url());
        if (url.protocol !== "data:" && url.origin !== base) faults.push(`asked elsewhere: ${url}`);
    });
    return { page, faults };
}

// Loads a page and waits until it is live.
export async function go(page, target) {
    await page.goto(base + target);
    await page.locator("#connection", { hasText: /^live$/ }).waitFor();
}

// Presses the button of a form and says yes to the question, both by keyboard.
export async function act(page, form) {
    await form.getByRole("button").focus();
    await page.keyboard.press("Enter");
    await page.locator("dialog[open]").waitFor();
    await page.keyboard.press("Enter");
    await page.locator("dialog[open]").waitFor({ state: "detached" });
}

export async function told(page, text) {
    await page.locator("#told p.good", { hasText: text }).first().waitFor();
}

// As the page is, and on a small screen, where nothing may stick out sideways. Notices would lie over it.
export async function shoot(page, name) {
    await page.evaluate(() => document.getElementById("told").replaceChildren());
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path: path.join(shots, `${name}.png`) });
    await page.setViewportSize({ width: 400, height: 800 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    await page.screenshot({ path: path.join(shots, `${name}-400.png`) });
    await page.setViewportSize({ width: 1100, height: 760 });
    check(wide <= 400, `${name} is ${wide} pixels wide on a screen of 400`);
}
