// The policy of a host: the editor, its messages, what the host page shows of it, the explanation of a typed request; and the
// time range of the charts with the changes of routes.

import { api, check, go, noticed, server, shoot } from "./harness.mjs";

// A policy that the API rejects.
export const expected = ["status of 422", "status of 412"];

async function save(page) {
    await page.getByRole("button", { name: "Save policy" }).first().press("Enter");
    await page.locator("dialog[open]").waitFor();
}

async function edits(page) {
    await go(page, "/dashboard/host?name=rules.test");
    await page.getByRole("link", { name: "Edit policy" }).press("Enter");
    await page.getByRole("heading", { name: "Policy of rules.test" }).waitFor();
    await page.getByLabel("Wait for an instance, ms").fill("99999999");
    await save(page);
    await page.locator("#confirm-yes").press("Enter");
    // The message of the API is at the field, which has the focus.
    const wrong = page.locator('label:has([name="hold_ms"]) .wrong');
    await wrong.filter({ hasText: "hold_ms must be 1 to 60000" }).waitFor();
    check(await page.evaluate(() => document.activeElement.name === "hold_ms"), "the wrong field has the focus");
    check((await api("GET", "/hosts/rules.test")).rules === undefined, "nothing was saved");

    await page.getByLabel("Wait for an instance, ms").fill("2000");
    await page.getByLabel("Buffer responses").selectOption("true");
    await page.getByLabel("Allowed networks").fill("10.0.0.0/8\n127.0.0.0/8");
    await page.getByLabel("Methods").fill("get post");
    await page.getByRole("button", { name: "Add a path" }).press("Enter");
    await page.getByLabel("Path of rule 1").fill("/api");
    await page.getByLabel("Host of rule 1").fill("backend.test");
    await page.getByLabel("Prefix of rule 1").selectOption("strip");
    await shoot(page, "policy");
    await save(page);
    const question = await page.locator("#confirm-text").textContent();
    check(question.includes("hold_ms: default → 2000") && question.includes("buffering: default → true"), question);
    const command = await page.locator("#confirm-command").textContent();
    check(command.includes("signalbox hosts set-policy rules.test") && command.includes("curl -X PUT"), command);
    await page.locator("#confirm-yes").press("Enter");
    await noticed(page, "Saved the policy of rules.test.");
    const { rules } = await api("GET", "/hosts/rules.test");
    check(rules.hold_ms === 2000 && rules.methods.join() === "GET,POST", JSON.stringify(rules));
    check(rules.paths[0].service === "backend.test" && rules.paths[0].strip, JSON.stringify(rules));
}

// Two operators edit the same policy: the second to save sees what the first has changed, and loses nothing of its own.
async function editTogether(page, context) {
    const editor = "/dashboard/policy?name=rules.test";
    const other = await context.newPage();
    await go(page, editor);
    await go(other, editor);
    await other.locator('[name="hold_ms"]').fill("3000");
    await save(other);
    await other.locator("#confirm-yes").press("Enter");
    await noticed(other, "Saved the policy of rules.test.");
    // The same editor can save again.
    await other.locator('[name="retries.attempts"]').fill("2");
    await save(other);
    await other.locator("#confirm-yes").press("Enter");
    await other.locator("#notices p.good", { hasText: "Saved" }).nth(1).waitFor();
    await other.close();

    await page.locator('[name="limits.requests.burst"]').fill("7");
    await page.locator('[name="limits.requests.per_second"]').fill("5");
    await save(page);
    await page.locator("#confirm-yes").press("Enter");
    const problem = page.locator("#policy-problem");
    await problem.locator("li", { hasText: "hold_ms: 2000 → 3000" }).waitFor();
    await problem.locator("li", { hasText: "retries" }).waitFor();
    check((await page.locator('[name="limits.requests.burst"]').inputValue()) === "7", "the input stays");
    check((await api("GET", "/hosts/rules.test")).rules.limits === undefined, "nothing of it was saved");
    await shoot(page, "policy-conflict");
    await problem.getByRole("button", { name: "Take over these changes" }).press("Enter");
    check((await page.locator('[name="hold_ms"]').inputValue()) === "3000", "the other change is taken over");
    await save(page);
    const question = await page.locator("#confirm-text").textContent();
    check(!question.includes("hold_ms"), `the question names only the own changes: ${question}`);
    await page.locator("#confirm-yes").press("Enter");
    await noticed(page, "Saved the policy of rules.test.");
    const { rules } = await api("GET", "/hosts/rules.test");
    check(rules.hold_ms === 3000 && rules.retries.attempts === 2 && rules.limits.requests.per_second === 5, JSON.stringify(rules));
    check(rules.paths[0].service === "backend.test", "parts without a change stay");
    await api("PUT", "/hosts/rules.test", { ...rules, limits: undefined });
}

async function explains(page) {
    await go(page, "/dashboard/host?name=rules.test");
    await page.locator("#paths tr", { hasText: "/api" }).getByRole("link", { name: "backend.test" }).waitFor();
    await page.locator("dl.facts", { hasText: "10.0.0.0/8" }).waitFor();
    const step = (title) => page.locator("#explained li", { hasText: title });
    await page.getByLabel("URL or path").fill("/api/orders");
    await page.getByLabel("Client address").fill("192.0.2.1");
    await page.getByRole("button", { name: "Explain" }).press("Enter");
    await step("Client address").filter({ hasText: "192.0.2.1 is in no allowed network" }).waitFor();
    check((await step("Instance").count()) === 0, "a rejected request reaches no instance");
    await page.getByLabel("Client address").fill("10.0.0.7");
    await page.getByRole("button", { name: "Explain" }).press("Enter");
    await step("Path").filter({ hasText: "/api leads to backend.test, which receives /orders" }).waitFor();
    await step("Method").filter({ hasText: "GET is an allowed method" }).waitFor();
    await step("Instance").filter({ hasText: "rules-1 receives the request: it is the only one" }).waitFor();
    await shoot(page, "host-explained");
}

async function charts(page) {
    await go(page, "/dashboard/host?name=rules.test");
    const range = page.getByRole("navigation", { name: "Time range" });
    for (const name of ["24h", "7d", "5m"]) {
        await range.getByRole("link", { name, exact: true }).press("Enter");
        await page.waitForURL((url) => url.searchParams.get("range") === name);
        await range.locator('[aria-current="true"]', { hasText: name }).waitFor();
        await page.locator("#chart-traffic canvas").waitFor();
    }
    await page.locator("#changes summary").press("Enter");
    await page.locator("#changes tr", { hasText: "policy of rules.test set" }).getByText("root").first().waitFor();
    await page.locator("#changes tr", { hasText: "rules-1 registered, version 7" }).waitFor();
}

export async function run(page, context) {
    const app = await server(() => 200);
    const register = (id, host) =>
        api("PUT", `/instances/${id}?wait=30s`, { address: app.address, hostnames: host, version_type_id: "7" });
    await register("rules-1", ["rules.test", "backend.test"]);
    await edits(page);
    await editTogether(page, context);
    await explains(page);
    await charts(page);
    await api("DELETE", "/instances/rules-1");
    for (const host of ["rules.test", "backend.test"]) await api("DELETE", `/hosts/${host}`);
    app.stop();
}
