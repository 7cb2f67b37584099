// Events: the live tail with filters, topics, and a subscriber that fails and recovers.

import { act, api, base, check, go, noticed, server, shoot, token } from "./harness.mjs";

// A filter that is rejected.
export const expected = ["status of 4"];

const EVIL = '<img src=x onerror="document.title=1">';

const credential = (name) => `${name}--0123456789abcdef`;

export async function run(page) {
    let answers = 500;
    const receiver = await server(() => answers);
    for (const name of ["publisher", "mailer"]) await api("POST", "/api_tokens", { name, token: credential(name) });
    const subscription = { topics: ["orders"], callback: receiver.url, uuid: "mailer", timeout: 0 };
    await api("POST", "/subscription", subscription, credential("mailer"));
    const publish = (topic, object) =>
        api("POST", `/topics/${topic}`, { type: "create", url: "https://shop.example/1", object, data: { object } }, credential("publisher"));

    await go(page, "/dashboard/events");
    await page.locator('#tail-filter[data-open="yes"]').waitFor();
    await publish("orders", "order:1");
    await publish("users", EVIL);
    const list = page.locator("#tail-list li");
    await list.filter({ hasText: "order:1" }).waitFor();
    await list.filter({ hasText: EVIL }).waitFor();
    check((await page.locator("#tail-list img").count()) === 0, "an object's name is text");

    await page.locator('#tail-filter input[name="topic"]').fill("users");
    await page.keyboard.press("Enter");
    await page.locator('#tail-filter[data-open="yes"]').waitFor();
    await publish("orders", "order:2");
    await publish("users", "user:1");
    await list.filter({ hasText: "user:1" }).waitFor();
    check((await list.filter({ hasText: "order:2" }).count()) === 0, "the filter excludes other topics");
    await shoot(page, "events");

    // A filter that the API rejects is explained in its words.
    await page.locator('#tail-filter input[name="pattern"]').fill("([");
    await page.keyboard.press("Enter");
    await page.locator("#tail-state", { hasText: "unclosed" }).waitFor();

    await go(page, "/dashboard/topics");
    const topic = (name) => page.locator(`tr[data-key="${name}"]`);
    await topic("orders").waitFor();
    await page.getByRole("searchbox", { name: "Topic or publisher" }).fill("user");
    await page.keyboard.press("Enter");
    await topic("users").waitFor();
    check((await topic("orders").count()) === 0, "the search excludes other topics");
    await page.getByRole("link", { name: "Show all" }).press("Enter");
    await topic("orders").getByRole("link", { name: "subscribers of orders" }).press("Enter");

    // This system allows one attempt, so a failed delivery is dead-lettered immediately.
    await page.locator('tr[data-key="mailer"] a').press("Enter");
    await page.locator("#dead-count", { hasText: /^2$/ }).waitFor();
    await page.locator('section[aria-labelledby="dead"]').getByText("answered 500").first().waitFor();
    // The log of deliveries has the reason of each failed attempt.
    const attempts = page.locator('section[aria-labelledby="deliveries"] tbody tr');
    await attempts.filter({ hasText: "500" }).first().waitFor();
    await shoot(page, "subscriber");
    answers = 200;
    await act(page, page.locator('form[data-key="redrive"]'));
    await noticed(page, "Dead letters redriven.");
    await page.locator("#none-dead").waitFor();
    await act(page, page.locator('form[data-key="test"]'));
    await noticed(page, "Test event delivered.");
    await act(page, page.locator('form[data-key="replay"]'));
    await noticed(page, "Replay started.");
    await act(page, attempts.filter({ hasText: "delivered" }).first().locator('form[data-key="resend"]'));
    await noticed(page, "is delivered again.");

    // The page of an event: its content, where it went, and each attempt.
    await attempts.first().locator('a[href^="/dashboard/event?"]').press("Enter");
    await page.locator("#payload", { hasText: "order:" }).waitFor();
    const delivery = page.locator('section[aria-labelledby="subscribers"] tr[data-key="mailer"]');
    await delivery.locator(".attempts li", { hasText: "status 500" }).first().waitFor();
    await delivery.locator(".badge", { hasText: "delivered" }).waitFor();
    await page.getByText("No queue's pattern matches").waitFor();
    await act(page, delivery.locator('form[data-key="resend"]'));
    await noticed(page, "is delivered again.");
    await shoot(page, "event");

    // Deliveries are paused and resumed.
    await delivery.getByRole("link", { name: "mailer" }).press("Enter");
    await act(page, page.locator('form[data-key="pause"]'));
    await page.locator("h1 .badge", { hasText: "paused" }).waitFor();
    await act(page, page.locator('form[data-key="resume"]'));
    await page.locator("h1 .badge", { hasText: "paused" }).waitFor({ state: "detached" });

    // A token that is confined to another tenant does not see the event.
    const id = (await page.locator('section[aria-labelledby="deliveries"] a[href^="/dashboard/event?"]').first().innerText()).trim();
    const { token: confined } = await api("POST", "/tokens", { name: "confined", scopes: ["read"], tenants: ["elsewhere"] });
    const status = async (as) => (await fetch(`${base}/dashboard/event?name=${id}`, { headers: { authorization: `Bearer ${as}` } })).status;
    check((await status(confined)) === 404, "an event of another tenant does not exist for a confined token");
    check((await status(token)) === 200, "root sees it");
    await api("DELETE", "/tokens/confined");
    receiver.stop();
}
