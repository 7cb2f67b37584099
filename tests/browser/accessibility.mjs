// Every page in both themes and at two sizes, with one of everything; by keyboard alone; and without JavaScript.

import { api, base, check, go, noticed, start } from "./harness.mjs";
import { furnish } from "./furnish.mjs";
import { sweep, violations } from "./sweep.mjs";

// The unknown page; and on a busy machine, a page whose data is not there in time, which its stream replaces.
export const expected = ["status of 404", "status of 503"];

// Presses a key until the focus is on an element that `wanted` describes, in the page.
async function tabTo(page, what, wanted, key = "Tab") {
    for (let pressed = 0; pressed < 200; pressed += 1) {
        if (await page.evaluate(wanted)) return;
        await page.keyboard.press(key);
    }
    throw new Error(`${key} does not lead to ${what}`);
}

// The navigation, a search, and an action with its confirmation, without a mouse.
async function byKeyboard(page) {
    await go(page, "/");
    await tabTo(page, "the link Queues", () => document.activeElement.textContent === "Queues");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Queues", level: 1 }).waitFor();
    await page.locator("#connection", { hasText: /^live$/ }).waitFor();
    await tabTo(page, "the search", () => document.activeElement.type === "search");
    await page.keyboard.type("furnished");
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.searchParams.get("search") === "furnished");
    await page.locator("#connection", { hasText: /^live$/ }).waitFor();
    await tabTo(page, "the queue", () => document.activeElement.textContent === "furnished");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "furnished", level: 1 }).waitFor();
    await page.locator("#connection", { hasText: /^live$/ }).waitFor();
    await tabTo(page, "the button Pause", () => document.activeElement.getAttribute("aria-label") === "Pause tenant-0");
    await page.keyboard.press("Enter");
    await page.locator("dialog[open]").waitFor();
    check(!(await violations(page)).length, "the dialog has findings");
    // The focus stays in the dialog, and returns to the button.
    await page.keyboard.press("Escape");
    await page.locator("dialog[open]").waitFor({ state: "detached" });
    const focused = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
    check(focused === "Pause tenant-0", `the focus returns to the button, not to ${focused}`);
    await page.keyboard.press("Enter");
    await page.locator("dialog[open]").waitFor();
    await page.keyboard.press("Enter");
    await noticed(page, "Paused tenant-0.");
    check((await api("GET", "/queues/furnished/tenants/tenant-0")).paused, "the tenant is paused");
}

// Each page can be read; a form that would do nothing is hidden, and a search works.
async function withoutJavaScript(context, pages) {
    const { browser } = await start();
    const plain = await browser.newContext({ javaScriptEnabled: false, storageState: await context.storageState() });
    const bare = await plain.newPage();
    for (const [name, target] of Object.entries(pages)) {
        await bare.goto(base + target);
        await bare.locator("h1").first().waitFor();
        const visible = await bare.locator("main form:visible").evaluateAll((forms) => forms.map((form) => form.getAttribute("method") ?? "get"));
        // Without a script, a form that is not a search has no effect.
        check(visible.every((method) => method === "get"), `${name} shows a form that has no effect`);
        for (const useless of ["form.act", "#policy-form", "#simulation", "#tail-filter", "[data-bulk]", "[data-select]", "[data-select-all]"]) {
            check(!(await bare.locator(`main ${useless}:visible`).count()), `${name} shows ${useless}, which has no effect`);
        }
    }
    await bare.goto(`${base}/dashboard/queues`);
    await bare.getByRole("searchbox").fill("furnished");
    await bare.getByRole("button", { name: "Search" }).click();
    await bare.waitForURL((url) => url.searchParams.get("search") === "furnished");
    await bare.getByRole("link", { name: "furnished", exact: true }).click();
    await bare.getByRole("heading", { name: "furnished", level: 1 }).waitFor();
    await bare.goto(`${base}/dashboard/host?name=furnished.test`);
    await bare.getByLabel("URL or path").fill("/api/x");
    await bare.getByRole("button", { name: "Explain" }).click();
    await bare.locator("#explained li").first().waitFor();
    await bare.goto(`${base}/dashboard/policy?name=furnished.test`);
    await bare.locator("noscript p", { hasText: "The editor needs JavaScript" }).waitFor();
    await browser.close();
}

export async function run(page, context) {
    const { pages, remove } = await furnish();
    await sweep(page, { ...pages, unknown: "/dashboard/nosuch", docs: "/docs" }, "page-", ["unknown", "docs"]);
    const login = await (await context.browser().newContext()).newPage();
    await sweep(login, { login: "/dashboard/login" }, "page-", ["login"]);
    await login.context().close();
    await byKeyboard(page);
    await withoutJavaScript(context, pages);
    await remove();
}
