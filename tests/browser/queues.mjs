// Queues: a noisy tenant next to a quiet one, and dead letters.

import { act, api, check, go, noticed, shoot, until } from "./harness.mjs";

// A change that is confirmed after another client has changed the queue is rejected; the notice shows what changed, and the
// input stays.
async function conflicts(page, row) {
    const weight = row("8").locator('form[data-key="weight"]');
    await row("8").locator('form[data-confirm*="from 3 to"]').waitFor();
    await weight.locator("input").fill("9");
    await weight.getByRole("button").press("Enter");
    await page.locator("dialog[open]", { hasText: "from 3 to 9" }).waitFor();
    await api("PATCH", "/queues/mail/tenants/8", { weight: 5 });
    await page.locator("#confirm-yes").press("Enter");
    await page.locator("#notices p.bad", { hasText: "weight: 3 → 5" }).waitFor();
    check((await api("GET", "/queues/mail/tenants/8")).weight === 5, "the other change stays");
    check((await weight.locator("input").inputValue()) === "9", "the input stays");
    await act(page, weight);
    await noticed(page, "Changed the weight of 8.");

    const before = await api("GET", "/queues/mail");
    await page.locator("details[data-key=definition] summary").press("Enter");
    const definition = page.locator('form[data-key="definition"]');
    await definition.getByLabel("Lease, seconds").fill("77");
    await definition.getByRole("button").press("Enter");
    await page.locator("dialog[open]", { hasText: `Lease, seconds: ${before.lease_seconds} → 77` }).waitFor();
    await api("PATCH", "/queues/mail", { retention_seconds: 4000 });
    await page.locator("#confirm-yes").press("Enter");
    await page.locator("#notices p.bad", { hasText: `retention_seconds: ${before.retention_seconds} → 4000` }).waitFor();
    await act(page, definition);
    await noticed(page, "Changed the definition of mail.");
    const { lease_seconds, retention_seconds } = await api("GET", "/queues/mail");
    check(lease_seconds === 77 && retention_seconds === 4000, "only the changed field is sent");

    // The page is updated a moment later; a change before that is a conflict.
    const revision = await definition.getAttribute("data-revision");
    await row("8").locator(`form[data-key="pause"][data-revision="${revision}"]`).waitFor();
    await act(page, row("8").locator('form[data-key="pause"]'));
    await row("8").locator(".badge", { hasText: "paused" }).waitFor();
    check((await api("GET", "/queues/mail/tenants/8")).paused, "the tenant is paused");
    await act(page, row("8").locator('form[data-key="pause"]'));
    await row("8").locator(".badge", { hasText: "paused" }).waitFor({ state: "detached" });
}

// Two requests that are rejected.
export const expected = ["status of 412"];

export async function run(page) {
    await api("PUT", "/queues/mail", { pattern: "[0-9]+:mail:.*", max_attempts: 1 });
    const publish = (tenant, count) =>
        api("POST", "/messages", Array.from({ length: count }, (_, n) => ({ tenant, type: "mail", name: `m${n}` })));
    await publish("7", 1);
    await go(page, "/dashboard/queues");
    await page.getByRole("link", { name: "mail" }).press("Enter");
    const row = (name) => page.locator(`section[aria-labelledby="tenants"] tr[data-key="${name}"]`);
    await row("7").waitFor();
    await publish("8", 150);
    await row("8").getByText("noisy").waitFor();
    // The history of the queue is read every few seconds.
    await page.locator('#chart-depth[aria-label*="waiting 151"]').waitFor();
    for (const chart of ["rates", "age"]) await page.locator(`#chart-${chart} canvas`).waitFor();
    check((await row("7").getByText("noisy").count()) === 0, "the quiet tenant is not marked");
    const order = () => page.locator('section[aria-labelledby="tenants"] tbody tr td:first-child code').allInnerTexts();
    check((await order()).join() === "8,7", "the deepest tenant is first");
    await page.getByRole("link", { name: "tenant", exact: true }).click();
    await row("7").waitFor();
    check((await order()).join() === "7,8", "sorted by name");

    const { messages } = await api("POST", "/queues/mail/pull", { max: 2 });
    await api("POST", "/queues/mail/nack", { receipts: messages.map((message) => message.receipt) });
    const letters = page.locator('section[aria-labelledby="dead"] tbody tr');
    await letters.nth(1).waitFor();
    await shoot(page, "queue");
    // The page of a message, where it is redriven; and selected dead letters with progress.
    const letter = await letters.first().getAttribute("data-key");
    await letters.first().getByRole("link").press("Enter");
    const place = page.locator('section[aria-labelledby="queues"] tr[data-key="mail"]');
    await place.getByText("dead letter").waitFor();
    await shoot(page, "message");
    await act(page, place.locator('form[data-key="redrive"]'));
    await place.getByText("waiting").waitFor();
    await go(page, "/dashboard/queues?name=mail");
    check((await letters.count()) === 1 && (await letters.first().getAttribute("data-key")) !== letter, "one dead letter is left");
    await letters.first().getByRole("checkbox").check();
    await page.getByRole("button", { name: "Redrive selected" }).press("Enter");
    await page.locator("dialog[open]", { hasText: "Redrive 1 dead letters" }).waitFor();
    await page.locator("#confirm-yes").press("Enter");
    await noticed(page, "Redrive selected: 1 of 1 done");
    await page.locator('section[aria-labelledby="dead"]').getByText("None.").waitFor();
    // More dead letters than fit on a page.
    const again = await api("POST", "/queues/mail/pull", { max: 60 });
    await api("POST", "/queues/mail/nack", { receipts: again.messages.map((message) => message.receipt) });
    await until("a page of dead letters", async () => (await letters.count()) === 50);
    await page.locator("#next-letters").press("Enter");
    await until("the other dead letters", async () => (await letters.count()) === 10);
    await act(page, page.locator('form[data-key="redrive-all"]'));
    await noticed(page, "Redriven: 60 messages.");
    await page.locator('form[data-key="redrive-all"]').waitFor({ state: "detached" });
    await row("8").locator('input[name="weight"]').fill("3");
    await act(page, row("8").locator('form[data-key="weight"]'));
    await noticed(page, "Changed the weight of 8.");
    check((await api("GET", "/queues/mail/tenants/8")).weight === 3, "the weight is set");
    await conflicts(page, row);
    const next = page.locator('section[aria-labelledby="next"] tbody tr');
    await next.first().locator("summary").press("Enter");
    await next.first().locator("pre", { hasText: "mail" }).waitFor();
    await act(page, row("8").locator('form[data-key="drop"]'));
    await row("8").waitFor({ state: "detached" });
    check((await api("GET", "/queues/mail/tenants")).tenants.every((tenant) => tenant.tenant !== "8"), "the tenant has no messages");
}
