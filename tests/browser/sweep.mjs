// What holds for every page: no findings of axe-core (https://github.com/dequelabs/axe-core) in both themes, no sideways scroll
// on a small screen, and a screenshot of each.

import { readFileSync } from "node:fs";
import path from "node:path";

import { base, check, go, shots } from "./harness.mjs";

const axe = readFileSync(path.join(process.env.SIGNALBOX_BROWSER_MODULES, "node_modules/axe-core/axe.min.js"), "utf8");
const SIZES = [[1400, 900], [390, 844]];

export async function violations(page) {
    // Evaluated by the debugger, so the content security policy of the page stays in effect.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run());
    return violations.map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

// Checks pages: name → address. Pages without a stream, such as the login, are `still`. The names of screenshots begin with
// `prefix`.
export async function sweep(page, pages, prefix, still = [], themes = ["light", "dark"]) {
    const found = [];
    for (const colorScheme of themes) {
        await page.emulateMedia({ colorScheme });
        for (const [name, target] of Object.entries(pages)) {
            if (still.includes(name)) await page.goto(base + target);
            else await go(page, target);
            if (await page.locator(".chart[id]").count()) await page.locator(".chart canvas").first().waitFor();
            const about = `${target} (${colorScheme})`;
            found.push(...(await violations(page)).map((one) => `${about}: ${one}`));
            for (const [width, height] of SIZES) {
                await page.setViewportSize({ width, height });
                const wide = await page.evaluate(() => document.documentElement.scrollWidth);
                if (wide > width) found.push(`${about} is ${wide} pixels wide on a screen of ${width}`);
                await page.screenshot({ path: path.join(shots, `${prefix}${name}-${colorScheme}-${width}.png`) });
            }
            await page.setViewportSize({ width: 1400, height: 900 });
        }
    }
    await page.emulateMedia({ colorScheme: "light" });
    check(!found.length, found.join("\n"));
}
