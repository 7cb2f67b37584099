// What holds for every page: no findings of axe-core (https://github.com/dequelabs/axe-core) in both themes, nothing that is
// wider than its place, and a screenshot of each.

import { readFileSync } from "node:fs";
import path from "node:path";

import { base, check, go, shots } from "./harness.mjs";

const axe = readFileSync(path.join(process.env.SIGNALBOX_BROWSER_MODULES, "node_modules/axe-core/axe.min.js"), "utf8");
const SIZES = [[1400, 900], [1024, 768], [390, 844]];
// Below this width, tables, graphs and code scroll on purpose.
const SMALL = 896;

export async function violations(page) {
    // Evaluated by the debugger, so the content security policy of the page stays in effect.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run());
    return violations.map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

// What has to be scrolled sideways. On a small screen a table may be wider than the screen if its first column, which names
// what a row is about, stays in view and leaves space for the others.
export function overflowing(page) {
    return page.evaluate((small) => {
        const found = [];
        const wide = document.documentElement.scrollWidth;
        if (wide > innerWidth) found.push(`the document is ${wide} pixels wide`);
        for (const element of document.querySelectorAll("main, main *")) {
            if (!["auto", "scroll"].includes(getComputedStyle(element).overflowX)) continue;
            // The layout of what is folded away is not current. The two widths are rounded, so they may differ by a pixel.
            if (!element.checkVisibility() || element.scrollWidth <= element.clientWidth + 1) continue;
            const name = element.getAttribute("aria-label") ?? (element.id || element.className || element.tagName);
            if (!small) found.push(`${name} is ${element.scrollWidth} pixels wide in ${element.clientWidth}`);
            if (!element.querySelector(":scope > table")) continue;
            element.scrollLeft = element.scrollWidth;
            const place = element.getBoundingClientRect();
            const hidden = [...element.querySelectorAll("tr > :first-child:not([colspan])")].filter((cell) => {
                const { left, right } = cell.getBoundingClientRect();
                return left < place.left - 2 || right > place.left + place.width * 0.6;
            });
            element.scrollLeft = 0;
            if (hidden.length) found.push(`the first column of ${name} is not in view: ${hidden[0].innerText}`);
        }
        return found;
    }, page.viewportSize().width < SMALL);
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
                // Charts and tables follow the new size with the next frame.
                await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
                found.push(...(await overflowing(page)).map((one) => `${about}, screen of ${width}: ${one}`));
                // Between the two sizes nothing is different but the width.
                if (width === 1024) continue;
                await page.screenshot({ path: path.join(shots, `${prefix}${name}-${colorScheme}-${width}.png`) });
            }
            await page.setViewportSize({ width: 1400, height: 900 });
        }
    }
    await page.emulateMedia({ colorScheme: "light" });
    check(!found.length, found.join("\n"));
}
