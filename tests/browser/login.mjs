// In and out, by keyboard.

import { base, check, token } from "./harness.mjs";

export async function run(page) {
    await page.goto(`${base}/dashboard/queues`);
    check(page.url().includes("/dashboard/login"), `shown the way in, not ${page.url()}`);
    // The field gets the focus by itself.
    await page.locator("#token:focus").waitFor();
    await page.keyboard.type(token);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Queues", level: 1 }).waitFor();
    check(page.url() === `${base}/dashboard/queues`, `where it wanted to go, not ${page.url()}`);

    await page.getByRole("button", { name: "Log out root" }).press("Enter");
    await page.getByLabel("Token").waitFor();
    await page.goto(`${base}/dashboard/objects`);
    check(page.url().includes("/dashboard/login"), "nobody is logged in any more");

    // For the pages that follow.
    await page.getByLabel("Token").fill(token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { name: "Objects", level: 1 }).waitFor();
}
