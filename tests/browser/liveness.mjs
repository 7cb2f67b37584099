// How old the data is: a page whose stream is silent says so, an unknown page has the navigation, and a page without JavaScript
// has no forms that would do nothing.

import { base, check, go, start } from "./harness.mjs";

// Pages that do not exist.
export const expected = ["status of 404"];

export async function run(page, context) {
    await page.clock.install();
    await go(page, "/dashboard/queues");
    await page.locator("#age", { hasText: "updated now" }).waitFor();

    // A server that keeps the connection and sends nothing: the clock of the page continues, and no message arrives.
    await page.route("**/dashboard/stream?*", () => {});
    await page.evaluate(() => window.dispatchEvent(new Event("pagehide")));
    await page.clock.runFor(4000);
    await page.locator("#connection", { hasText: /^delayed$/ }).waitFor();
    check(await page.locator("#stale").isHidden(), "four seconds are shown, but are no alarm");
    await page.clock.runFor(5000);
    await page.locator("#stale", { hasText: "not up to date" }).waitFor();
    await page.unroute("**/dashboard/stream?*");

    await page.goto(`${base}/dashboard/nosuch?utm=1`);
    await page.getByRole("heading", { name: "Not found", level: 1 }).waitFor();
    await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Hosts" }).waitFor();
    // Nothing replaces the message: the page has no stream, and claims none.
    check((await page.locator("#page").getAttribute("data-stream")) === "", "an unknown page has no stream");
    check(!(await page.locator("#connection").isVisible()), "an unknown page is not live");
    check(!(await page.locator(".side [aria-current]").count()), "no page of the navigation is current");
    // A thing that does not exist has a stream, because it may be created. The stream sends the same message.
    for (const target of ["queues?name=nosuch", "instances?name=nosuch", "machines?name=nosuch", "label?name=nosuch&label=x", "subscribers?name=nosuch"]) {
        await go(page, `/dashboard/${target}`);
        await page.getByRole("heading", { name: "Not found", level: 1 }).waitFor();
    }
    await go(page, "/dashboard/host?name=nosuch.test");
    await page.locator("#answer", { hasText: "404" }).waitFor();
    await go(page, "/dashboard/host?utm=1");

    const { browser } = await start();
    const plain = await browser.newContext({ javaScriptEnabled: false, storageState: await context.storageState() });
    const bare = await plain.newPage();
    await bare.goto(`${base}/dashboard/queues`);
    await bare.locator("body > noscript p", { hasText: "JavaScript is disabled" }).waitFor();
    check((await bare.locator("form.act").count()) > 0, "the page has a form");
    check(!(await bare.locator("form.act").first().isVisible()), "a form that has no effect is hidden");
    check(!(await bare.locator("#connection").isVisible()), "no connection is claimed");
    await browser.close();
}
