// One host: weight, drain and traffic split, each with a confirmation.

import { act, api, check, go, noticed, server, shoot, until, visit } from "./harness.mjs";

// Shares that do not total 100.
export const expected = ["status of 422", "status of 412"];

export async function run(page) {
    const [old, fresh] = [await server(() => 200), await server(() => 200)];
    const register = (id, app, version) =>
        api("PUT", `/instances/${id}?wait=30s`, { address: app.address, hostnames: ["web.test"], version_type_id: version });
    await register("old", old, "17");
    await register("new", fresh, "18");
    await go(page, "/dashboard/host?name=web.test");
    const row = (id) => page.locator(`#page section[aria-labelledby="instances"] tr[data-key="${id}"]`);
    await row("old").waitFor();

    // A canceled confirmation.
    const weight = row("old").locator('form[data-method="PUT"]');
    await weight.locator("input").fill("5");
    await weight.getByRole("button").click();
    await page.locator("dialog[open]", { hasText: "Change the weight of old from 1 to 5?" }).waitFor();
    // The same as a command.
    const shown = await page.locator("#confirm-command").textContent();
    check(shown.includes("curl -X PUT") && shown.includes('"weight":5'), shown);
    await page.keyboard.press("Escape");
    await page.locator("dialog[open]").waitFor({ state: "detached" });
    check((await api("GET", "/instances/old")).weight === 1, "a canceled action changes nothing");
    // Updates of the page keep typed text.
    check((await weight.locator("input").inputValue()) === "5", "typed text is kept");
    await act(page, weight);
    await noticed(page, "Changed the weight of old.");
    check((await api("GET", "/instances/old")).weight === 5, "the weight is set");
    check((await api("GET", "/instances/old")).version_type_id === "17", "and nothing else changed");

    // A weight is not set over a change that was made after the question.
    await row("old").locator('form[data-confirm*="from 5 to"]').waitFor();
    await weight.locator("input").fill("6");
    await weight.getByRole("button").press("Enter");
    await page.locator("dialog[open]", { hasText: "from 5 to 6" }).waitFor();
    await api("PUT", "/instances/old", { address: old.address, hostnames: ["web.test"], version_type_id: "17", weight: 4 });
    await page.locator("#confirm-yes").press("Enter");
    await page.locator("#notices p.bad", { hasText: "weight: 5 → 4" }).waitFor();
    check((await api("GET", "/instances/old")).weight === 4, "the other change stays");
    check((await weight.locator("input").inputValue()) === "6", "the input stays");

    await act(page, row("old").locator('form[data-key="drain"]'));
    await row("old").getByText("draining", { exact: true }).waitFor();
    check((await api("GET", "/instances/old")).state === "draining", "the instance is draining");
    await act(page, row("old").locator('form[data-key="resume"]'));
    await row("old").getByText("active", { exact: true }).waitFor();

    const shares = page.locator("form.block");
    await shares.locator('input[data-version="17"]').fill("90");
    await shares.locator('input[data-version="18"]').fill("20");
    await act(page, shares);
    // The API rejects it; the notice shows the API's message.
    await page.locator("#notices p.bad", { hasText: "100" }).waitFor();
    await shares.locator('input[data-version="18"]').fill("10");
    await act(page, shares);
    await noticed(page, "Traffic split set.");
    await page.locator('section[aria-labelledby="versions"] tr[data-key="17"]', { hasText: "90%" }).waitFor();
    const { rules } = await api("GET", "/hosts/web.test");
    check(JSON.stringify(rules.shares.map((share) => Number(share.percent)).sort()) === "[10,90]", JSON.stringify(rules));

    await until("the request rate", async () => {
        await Promise.all(Array.from({ length: 20 }, () => visit("web.test")));
        const rates = await page.locator('section[aria-labelledby="versions"] td:nth-child(3)').allInnerTexts();
        return rates.some((rate) => Number(rate) > 0);
    });
    await page.locator("#chart-versions canvas").waitFor();
    await page.locator("#chart-bytes canvas").waitFor();
    await page.getByText(/^Requests are routed to /).waitFor();
    await shoot(page, "host");

    // The question names everything that a promotion changes.
    const promote = page.locator('section[aria-labelledby="versions"] tr[data-key="18"] form');
    await promote.getByRole("button").press("Enter");
    await page.locator("dialog[open]").waitFor();
    const question = await page.locator("#confirm-text").textContent();
    for (const part of ["split is removed: 17 90%, 18 10%", "standby, and removed after 3600 seconds: old (17)", "undone"]) {
        check(question.includes(part), `${part}: ${question}`);
    }
    await page.keyboard.press("Escape");
    await page.locator("dialog[open]").waitFor({ state: "detached" });

    await act(page, page.locator('form[data-without="shares"]'));
    await page.locator('form[data-without="shares"]').waitFor({ state: "detached" });
    await act(page, promote);
    await row("old").getByText("draining", { exact: true }).waitFor();
    await page.locator('section[aria-labelledby="versions"] tr[data-key="18"]', { hasText: "promoted" }).waitFor();
    await act(page, page.locator("form#undo"));
    await row("old").getByText("active", { exact: true }).waitFor();
    await page.locator("form#undo").waitFor({ state: "detached" });
    check((await api("GET", "/instances/new")).state === "active", "both versions were served before");

    await go(page, "/dashboard/host");
    await page.getByRole("link", { name: "web.test" }).press("Enter");
    await page.getByRole("heading", { name: "web.test", level: 1 }).waitFor();
    old.stop();
    fresh.stop();
}
