// Queues: a noisy environment next to a quiet one, and dead letters.

import { act, api, check, go, noticed, shoot } from "./harness.mjs";

export async function run(page) {
    await api("PUT", "/queues/mail", { pattern: "[0-9]+:mail:.*", max_attempts: 1 });
    const publish = (environment, count) =>
        api("POST", "/messages", Array.from({ length: count }, (_, n) => ({ environment, type: "mail", name: `m${n}` })));
    await publish("7", 1);
    await go(page, "/dashboard/queues");
    await page.getByRole("link", { name: "mail" }).press("Enter");
    const row = (name) => page.locator(`section[aria-labelledby="facets"] tr[data-key="${name}"]`);
    await row("7").waitFor();
    await publish("8", 150);
    await row("8").getByText("noisy").waitFor();
    check((await row("7").getByText("noisy").count()) === 0, "the quiet environment is not marked");
    const order = () => page.locator('section[aria-labelledby="facets"] tbody tr td:first-child code').allInnerTexts();
    check((await order()).join() === "8,7", "the deepest environment is first");
    await page.getByRole("link", { name: "name", exact: true }).click();
    await row("7").waitFor();
    check((await order()).join() === "7,8", "sorted by name");

    const { messages } = await api("POST", "/queues/mail/pull", { max: 2 });
    await api("POST", "/queues/mail/nack", { receipts: messages.map((message) => message.receipt) });
    await page.locator('form[data-key="redrive"]').waitFor();
    await shoot(page, "queue");
    await act(page, page.locator('form[data-key="redrive"]'));
    await noticed(page, "Dead letters redriven.");
    await page.locator('form[data-key="redrive"]').waitFor({ state: "detached" });
    await row("8").locator('input[name="weight"]').fill("3");
    await act(page, row("8").locator('form[data-key="weight"]'));
    await noticed(page, "Changed the weight of 8.");
    check((await api("GET", "/queues/mail/facets/8")).weight === 3, "the weight is set");
    const next = page.locator('section[aria-labelledby="next"] tbody tr');
    await next.first().locator("summary").press("Enter");
    await next.first().locator("pre", { hasText: "mail" }).waitFor();
    await act(page, row("8").locator('form[data-key="drop"]'));
    await row("8").waitFor({ state: "detached" });
    check((await api("GET", "/queues/mail/facets")).facets.every((facet) => facet.environment !== "8"), "the environment has no messages");
}
