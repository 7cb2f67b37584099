// Every page in both themes, checked by axe-core (https://github.com/dequelabs/axe-core).

import { readFileSync } from "node:fs";
import path from "node:path";

import { api, base, check, go, server } from "./harness.mjs";

const axe = readFileSync(path.join(process.env.SIGNALBOX_BROWSER_MODULES, "node_modules/axe-core/axe.min.js"), "utf8");

const lists = ["problems", "host", "instances", "routers", "certificates", "events", "topics", "subscribers", "queues", "objects", "machines", "tokens", "audit"];

// The unknown page.
export const expected = ["status of 404"];

async function violations(page) {
    // Evaluated by the debugger, so the content security policy of the page stays in effect.
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run());
    return violations.map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

export async function run(page) {
    const app = await server(() => 200);
    await api("PUT", "/instances/axe-1?wait=30s", { address: app.address, hostnames: ["axe.test", "axe-2.test"], version_type_id: "7" });
    await api("PUT", "/hosts/axe.test", { methods: ["GET"], paths: [{ path: "/api", service: "axe-2.test" }] });
    await api("PUT", "/queues/axe", { pattern: ".*:axe:.*" });
    await api("POST", "/messages", [{ environment: "t", type: "axe", name: "one" }]);
    const pages = [
        "/",
        ...lists.map((name) => `/dashboard/${name}`),
        "/dashboard/host?name=axe.test&url=/api/x#explain",
        "/dashboard/policy?name=axe.test",
        "/dashboard/instances?name=axe-1",
        "/dashboard/queues?name=axe",
        "/dashboard/objects?name=none",
    ];
    const found = [];
    for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        for (const target of pages) {
            await go(page, target);
            found.push(...(await violations(page)).map((one) => `${target} (${colorScheme}): ${one}`));
        }
        for (const target of ["/dashboard/nosuch", "/docs"]) {
            await page.goto(base + target);
            found.push(...(await violations(page)).map((one) => `${target} (${colorScheme}): ${one}`));
        }
    }
    await page.emulateMedia({ colorScheme: "light" });
    await api("DELETE", "/instances/axe-1");
    await api("DELETE", "/queues/axe");
    app.stop();
    check(!found.length, found.join("\n"));
}
