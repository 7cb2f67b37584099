// Logging in and out, by keyboard.

import { base, check, token } from "./harness.mjs";

export async function run(page) {
    await page.goto(`${base}/dashboard/queues`);
    check(page.url().includes("/dashboard/login"), `expected the login, not ${page.url()}`);
    // The field has the focus from the start.
    await page.locator("#token:focus").waitFor();
    await page.keyboard.type(token);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Queues", level: 1 }).waitFor();
    check(page.url() === `${base}/dashboard/queues`, `expected the requested page, not ${page.url()}`);

    await page.getByRole("button", { name: "Log out root" }).press("Enter");
    await page.getByLabel("Token").waitFor();
    await page.goto(`${base}/dashboard/objects`);
    check(page.url().includes("/dashboard/login"), "the session has ended");

    // The following tests use this session.
    await page.getByLabel("Token").fill(token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { name: "Objects", level: 1 }).waitFor();
}
