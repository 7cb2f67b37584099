// The overview: numbers, charts and findings, all updated without a reload; and the parts that all pages share.

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
    await until("a higher serial", async () => Number(await page.locator("#serial").innerText()) > before);
    check((await visit("shop.test")) === 200, "the host is served");
    // The first tile shows requests per second.
    await until("a request rate", async () => {
        await visit("shop.test");
        return Number(await page.locator(".tiles b").first().innerText()) > 0;
    });
    await page.locator("#chart-traffic canvas").waitFor();
    await page.locator('#chart-traffic[aria-label*="requests"]').waitFor();

    // A finding appears, and disappears after the problem is fixed.
    await api("PUT", "/hosts/empty.test", { hold_ms: 1 });
    await api("PUT", "/instances/empty-1", { address: "127.0.0.1:9", hostnames: ["empty.test"], version_type_id: "9" });
    await api("DELETE", "/instances/empty-1");
    const finding = page.locator(".problem", { hasText: "empty.test has no instance." });
    await finding.waitFor();
    await shoot(page, "overview-wrong");
    await api("DELETE", "/hosts/empty.test");
    await finding.waitFor({ state: "detached" });
    check(await page.evaluate(() => window.loadedOnce), "the page was never reloaded");

    // By keyboard: skip to the content, or use the navigation.
    await page.keyboard.press("Tab");
    check((await page.evaluate(() => document.activeElement.textContent)).includes("Skip"), "the skip link is focused first");
    await page.keyboard.press("Enter");
    check(await page.evaluate(() => document.activeElement.id === "page"), "the skip link moves the focus to the content");
    await page.getByRole("navigation").getByRole("link", { name: "Hosts" }).press("Enter");
    await page.getByRole("heading", { name: "Hosts", level: 1 }).waitFor();
    await go(page, "/");

    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    // The theme is chosen with a button, and is kept.
    const light = await background();
    const theme = page.locator("#theme");
    await theme.press("Enter");
    check((await background()) === light, "the light theme is that of this system");
    await theme.press("Enter");
    check((await background()) !== light, "the dark theme is chosen");
    await go(page, "/");
    check((await background()) !== light, "the choice is kept");
    await theme.press("Enter");
    check((await background()) === light, "the theme follows the system again");
    await page.emulateMedia({ colorScheme: "dark" });
    check((await background()) !== light, "dark mode has another background");
    await page.locator("#chart-traffic canvas").waitFor();
    await shoot(page, "overview-dark");
    await page.emulateMedia({ colorScheme: "light" });
    await shoot(page, "overview");
    await api("DELETE", "/instances/shop-1");
    await api("DELETE", "/hosts/shop.test");
    app.stop();
}
