// Runs a suite of tests in one browser, one after another: `node run.mjs pages`. Stops at the first failure and takes a screenshot.

import path from "node:path";

import * as accessibility from "./accessibility.mjs";
import * as charts from "./charts.mjs";
import * as events from "./events.mjs";
import { open, shots, start } from "./harness.mjs";
import * as host from "./host.mjs";
import * as liveness from "./liveness.mjs";
import * as login from "./login.mjs";
import * as machines from "./machines.mjs";
import * as objects from "./objects.mjs";
import * as overview from "./overview.mjs";
import * as policy from "./policy.mjs";
import * as queues from "./queues.mjs";
import * as scale from "./scale.mjs";

const suites = {
    pages: { login, overview, host, policy, events, queues, objects, machines, liveness },
    charts: { login, charts },
    everywhere: { login, accessibility },
    scale: { login, scale },
    "very-large": { login, scale: { ...scale, run: (page, context) => scale.run(page, context, scale.VERY_LARGE) } },
};
const { browser, context } = await start();
let code = 0;
for (const [name, test] of Object.entries(suites[process.argv[2] ?? "pages"])) {
    const { page, faults } = await open(context);
    try {
        await test.run(page, context);
        // A browser logs every rejected request as an error. Those that a test causes on purpose are expected.
        const expected = test.expected ?? [];
        const surprises = faults.filter((fault) => !expected.some((text) => fault.includes(text)));
        if (surprises.length) throw new Error(surprises.join("\n"));
        console.log(`${name}: passed`);
    } catch (error) {
        console.log(`${name}: ${error.stack}`);
        faults.forEach((fault) => console.log(`${name}: ${fault}`));
        console.log(`${name}: at ${page.url()}`);
        await page.screenshot({ path: path.join(shots, `failed-${name}.png`), fullPage: true }).catch(() => {});
        console.log(await page.locator("body").innerText().catch(() => ""));
        code = 1;
        break;
    }
    await page.close();
}
await browser.close();
process.exit(code);
