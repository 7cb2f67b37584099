// The overview: numbers, charts, what is wrong, all of it without loading again; and what is common to all pages.

import { api, check, go, server, shoot, until, visit } from "./harness.mjs";

export async function run(page) {
    const app = await server(() => 200);
    await go(page, "/");
    const before = Number(await page.locator("#serial").innerText());
    await page.evaluate(() => (window.loadedOnce = true));

    await api("PUT", "/instances/shop-1?wait=30s", {
        address: app.address,
        hostnames: ["shop.test"],
        version_type_id: "17",
    });
    await page.getByRole("link", { name: "shop.test" }).first().waitFor();
    await until("the serial to rise", async () => Number(await page.locator("#serial").innerText()) > before);
    check((await visit("shop.test")) === 200, "the host is served");
    // Counted, sent and drawn. The tile says requests a second.
    await until("the request to be counted", async () => {
        await visit("shop.test");
        return Number(await page.locator(".tiles b").first().innerText()) > 0;
    });
    await page.locator("#chart-traffic canvas").waitFor();
    await page.locator('#chart-traffic[aria-label*="requests"]').waitFor();

    // What is wrong is said, and no longer when it is not.
    await api("PUT", "/hosts/empty.test", { hold_ms: 1 });
    await api("PUT", "/instances/empty-1", { address: "127.0.0.1:9", hostnames: ["empty.test"], version_type_id: "9" });
    await api("DELETE", "/instances/empty-1");
    const finding = page.locator(".findings li", { hasText: "empty.test has no instance." });
    await finding.waitFor();
    await shoot(page, "overview-wrong");
    await api("DELETE", "/hosts/empty.test");
    await finding.waitFor({ state: "detached" });
    check(await page.evaluate(() => window.loadedOnce), "all of it in one page, never loaded again");

    // By keyboard: past everything to the content, or along the pages.
    await page.keyboard.press("Tab");
    check((await page.evaluate(() => document.activeElement.textContent)).includes("Skip"), "the first stop is the skip link");
    await page.keyboard.press("Enter");
    check(await page.evaluate(() => document.activeElement.id === "page"), "which leads to the content");
    await page.getByRole("navigation").getByRole("link", { name: "Hosts" }).press("Enter");
    await page.getByRole("heading", { name: "Hosts", level: 1 }).waitFor();
    await go(page, "/");

    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await page.emulateMedia({ colorScheme: "dark" });
    check((await ground()) !== light, "dark is another ground than light");
    await page.locator("#chart-traffic canvas").waitFor();
    await shoot(page, "overview-dark");
    await page.emulateMedia({ colorScheme: "light" });
    await shoot(page, "overview");
    await api("DELETE", "/instances/shop-1");
    await api("DELETE", "/hosts/shop.test");
    app.stop();
}
