// Questions of an operator who knows only the address and a token. Each begins on the overview, and is answered within four
// clicks; typing and Enter in a field is none.

import { api, check, go, server, until } from "./harness.mjs";

const MAX_CLICKS = 4;

export async function ask(page) {
    const healthy = { path: "/health", interval_seconds: 1 };
    let answers = 200;
    const app = await server(() => answers);
    await api("PUT", "/instances/asked-1?wait=30s", { address: app.address, hostnames: ["asked.test"], version_type_id: "asked", health: healthy });
    await api("PUT", "/hosts/asked.test", { methods: ["GET"] });
    answers = 500;
    await until("a failing health check", async () => (await api("GET", "/instances/asked-1")).unhealthy_because);

    let clicks = 0;
    const click = async (locator) => {
        clicks += 1;
        await locator.first().press("Enter");
    };
    const menu = (name) => click(page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name }));
    const type = async (label, text) => {
        await page.getByLabel(label).first().fill(text);
        await page.keyboard.press("Enter");
    };
    const host = async (name) => {
        await menu("Hosts");
        await type("Host, state or version type", name);
        await click(page.getByRole("link", { name, exact: true }));
        await page.getByRole("heading", { name, level: 1 }).waitFor();
    };
    const questions = {
        "which host is failing, and since when": async () => {
            await click(page.locator(".problem a", { hasText: "asked.test" }));
            await page.locator("td", { hasText: "since" }).filter({ hasText: "unhealthy" }).waitFor();
        },
        "why is it failing": async () => {
            await click(page.locator(".problem a", { hasText: "asked.test" }));
            await page.locator("td", { hasText: "unhealthy" }).filter({ hasText: "500" }).waitFor();
        },
        "which subscriber is slow": async () => {
            await menu("Subscribers");
            await click(page.getByRole("columnheader", { name: "oldest" }).getByRole("link"));
            await page.locator("tbody tr").first().waitFor();
        },
        "who changed the policy of asked.test": async () => {
            await host("asked.test");
            await click(page.getByRole("link", { name: "Who changed it" }));
            await page.locator("tbody tr", { hasText: "/hosts/asked.test" }).getByText("root").first().waitFor();
        },
        "which tenant fills the queue": async () => {
            await menu("Queues");
            await click(page.locator("tbody tr td:first-child a"));
            await page.locator('section[aria-labelledby="tenants"] tbody tr').first().waitFor();
        },
        "what happened to the label customer-1": async () => {
            await menu("Machines");
            await click(page.getByRole("link", { name: "furnished", exact: true }));
            await type("Name prefix", "customer-1");
            await click(page.getByRole("link", { name: "customer-1", exact: true }));
            await page.locator('section[aria-labelledby="history"] tbody tr').first().waitFor();
        },
        "which router lags": async () => {
            await menu("Routers");
            await page.getByRole("columnheader", { name: "behind" }).waitFor();
        },
        "when does a certificate expire": async () => {
            await menu("Certificates");
            await page.locator("tbody tr", { hasText: "shop.test" }).locator(".badge").waitFor();
        },
        "which token is used from where": async () => {
            await menu("Tokens");
            await click(page.getByRole("link", { name: "Audit log of furnished-token" }));
            await page.getByRole("heading", { name: "Audit log" }).waitFor();
        },
        "what would a request get": async () => {
            await host("asked.test");
            await type("URL or path", "/x");
            await page.locator("#explained li").first().waitFor();
        },
    };
    for (const [question, answer] of Object.entries(questions)) {
        await go(page, "/");
        if (question.includes("failing")) await page.locator(".problem a", { hasText: "asked.test" }).first().waitFor();
        clicks = 0;
        const begin = performance.now();
        await answer();
        console.log(`questions: ${question}: ${clicks} clicks, answered in ${Math.round(performance.now() - begin)} ms`);
        check(clicks <= MAX_CLICKS, `${question} takes ${clicks} clicks`);
    }
    await api("DELETE", "/instances/asked-1");
    await api("DELETE", "/hosts/asked.test");
    app.stop();
}
