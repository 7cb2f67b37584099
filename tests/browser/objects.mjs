// Objects: parked objects are retried and skipped.

import { act, api, check, go, noticed, server, shoot } from "./harness.mjs";

export async function run(page) {
    let answers = 500;
    const backend = await server(() => answers);
    await api("PUT", "/backends/search", {
        prefix: "work:",
        callback: backend.url,
        uuid: "search",
        on_failure: "park",
        max_attempts: 1,
    });
    await go(page, "/dashboard/objects");
    for (const object of ["work:1", "work:2"]) {
        await api("POST", `/objects/${encodeURIComponent(object)}/events`, {
            data: { title: "<b>Faust</b>" },
            events: [
                { topic: "works", type: "create", data: { n: 1 } },
                { topic: "works", type: "update" },
            ],
        });
    }
    const row = (name) => page.locator(`section[aria-labelledby="parked"] tr[data-key="${name}"]`);
    await row("work:1").getByText("answered 500").waitFor();
    await row("work:2").waitFor();
    await shoot(page, "objects");

    await page.getByLabel("Object name").fill("work:2");
    await page.keyboard.press("Enter");
    await page.locator("#parked", { hasText: "answered 500" }).waitFor();
    const chain = page.locator('section[aria-labelledby="chain"] tbody tr');
    check((await chain.count()) === 2, "both events are listed");
    const ids = await chain.locator("td:first-child").allInnerTexts();
    check((await chain.first().locator("td").nth(1).innerText()) === ids[1], "each event names the previous one");
    // Updates of the page keep open elements.
    await page.locator('details[data-key="state"] summary').press("Enter");
    await page.getByText("<b>Faust</b>").waitFor();
    await shoot(page, "object");
    answers = 204;
    await act(page, page.locator('form[data-path$="/unpark"]'));
    await noticed(page, "Retrying work:2.");
    await page.locator("#parked").waitFor({ state: "detached" });
    check(await page.locator('details[data-key="state"]').evaluate((details) => details.open), "open elements stay open");

    await go(page, "/dashboard/objects");
    await row("work:2").waitFor({ state: "detached" });
    await act(page, row("work:1").locator('form[data-path$="/skip"]'));
    await noticed(page, "Skipped event");
    await row("work:1").waitFor({ state: "detached" });
    check((await api("GET", "/backends/search/dead")).length === 1, "the skipped event is a dead letter");
    const redrive = page.locator('section[aria-labelledby="backends"] form[data-key="redrive"]');
    await act(page, redrive);
    await noticed(page, "Dead letters redriven.");
    await redrive.waitFor({ state: "detached" });
    backend.stop();
}
