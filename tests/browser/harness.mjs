// Shared by the tests of the pages: a browser, the system's API, and test applications and receivers.

import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

const { chromium } = createRequire(path.join(process.env.SIGNALBOX_BROWSER_MODULES, "x"))("playwright-core");

export const base = process.env.SIGNALBOX_ADMIN;
export const token = process.env.SIGNALBOX_TOKEN;
export const shots = process.env.SIGNALBOX_SHOTS;
const edge = new URL(process.env.SIGNALBOX_EDGE);

// Far longer than any step takes, even on a busy machine: it only ends a test that hangs.
export const PATIENCE = 60000;

export function check(condition, what) {
    if (!condition) throw new Error(what);
}

// Sends a request to the API, by default with the root token. Any status but 2xx is an error.
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

// Repeats `probe` until it returns a value. `what` describes the expected state in the error message.
export async function until(what, probe) {
    const deadline = Date.now() + PATIENCE;
    let last;
    while (Date.now() < deadline) {
        last = await probe();
        if (last) return last;
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`timed out waiting for ${what} (last result: ${JSON.stringify(last)})`);
}

// Starts a server. `decide` returns the status for a request, `body` the body.
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

// Sends a request to the edge and returns the status.
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
        // Chromium has no sandbox when it runs as root in a container. The tests load only the dashboard.
        args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        timeout: 2 * PATIENCE,
    });
    const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, colorScheme: "light" });
    context.setDefaultTimeout(PATIENCE);
    return { browser, context };
}

// Opens a tab and records errors, warnings and requests to other origins.
export async function open(context) {
    const page = await context.newPage();
    const faults = [];
    page.on("console", (message) => {
        if (["error", "warning"].includes(message.type())) faults.push(`console: ${message.text()}`);
    });
    page.on("pageerror", (error) => faults.push(`script: ${error.stack}`));
    page.on("request", (request) => {
        const url = new URL(request.url());
        if (url.protocol !== "data:" && url.origin !== base) faults.push(`request to another origin: ${url}`);
    });
    return { page, faults };
}

// Loads a page and waits until it is live.
export async function go(page, target) {
    await page.goto(base + target);
    await page.locator("#connection", { hasText: /^live$/ }).waitFor();
}

// Presses the button of a form and confirms the dialog, both by keyboard. What destroys something needs more than two times
// Enter.
export async function act(page, form) {
    await form.getByRole("button").focus();
    const destroys = await form.evaluate((element) => element.hasAttribute("data-danger"));
    await page.keyboard.press("Enter");
    await page.locator("dialog[open]").waitFor();
    const focused = await page.evaluate(() => document.activeElement.id);
    check(focused === (destroys ? "confirm-no" : "confirm-yes"), `the focus is on ${focused}`);
    await page.locator("#confirm-yes").press("Enter");
    await page.locator("dialog[open]").waitFor({ state: "detached" });
}

// Waits for a success notice.
export async function noticed(page, text) {
    await page.locator("#notices p.good", { hasText: text }).first().waitFor();
}

// Takes screenshots at two sizes and checks that the small one does not scroll sideways. Notices are removed because they
// cover the page.
export async function shoot(page, name) {
    await page.evaluate(() => document.getElementById("notices").replaceChildren());
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path: path.join(shots, `${name}.png`) });
    await page.setViewportSize({ width: 390, height: 844 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    await page.screenshot({ path: path.join(shots, `${name}-390.png`) });
    await page.setViewportSize({ width: 1400, height: 900 });
    check(wide <= 390, `${name} is ${wide} pixels wide on a screen of 390`);
}
