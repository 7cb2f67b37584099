// State machines: one is created, its labels move, a failed action is retried, and a new version moves labels.

import { act, api, check, go, noticed, server, shoot, until } from "./harness.mjs";

// The invalid definition.
export const expected = ["status of 422"];

// Text that a page must show and never run.
const hostile = `"><script>document.title="owned"</script>`;
const markup = `<img src=x onerror='document.title="owned"'>`;

const definition = (address, rest) => `state_machines:
  errands:
    feeds:
      - {name: weather, url: "http://${address}/weather/<label>", ttl: 1s}
    states:
      - gate: asked
        exit_condition: metadata.ready and metadata.weight > 3
        triggers: [{metadata: metadata}]
        on_apply: keep
        next:
          type: context
          path: metadata.kind
          destinations: [{value: light, state: ${rest}}]
          default: carry
      - action: carry
        webhook: http://${address}/carry/<label>
        retry: {attempts: 1}
        next: ${rest}
      - gate: ${rest}
        exit_condition: metadata.again or feeds.weather.sunny
        triggers: [{metadata: again}, {time: 04:00}]
        next:
          type: condition
          branches: [{when: metadata.again, state: asked}]
          default: home
      - gate: home
`;

const label = (name) => `/state-machines/errands/labels/${encodeURIComponent(name)}`;
const node = (page, state) => page.locator(`a.state[data-key="state-${state}"]`);
const counts = (page, state, text) => node(page, state).locator(".count", { hasText: new RegExp(`^${text}$`) }).waitFor();

async function define(page, text) {
    await page.locator("#definition").fill(text);
    await page.getByRole("button", { name: "Preview changes" }).press("Enter");
}

// Presses a button and confirms the dialog.
async function confirm(page, button) {
    await button.press("Enter");
    await page.locator("dialog[open]").waitFor();
    await page.keyboard.press("Enter");
    await page.locator("dialog[open]").waitFor({ state: "detached" });
}

async function first(page, address) {
    await go(page, "/dashboard/machines");
    await page.getByLabel("New machine").fill("errands");
    await page.keyboard.press("Enter");
    await page.getByText("No machine has this name yet.").waitFor();
    await define(page, definition(address, "resting").replace("default: home", "default: hom"));
    const problem = await page.locator("#planned pre.problems").innerText();
    check(problem.includes("default: hom\n") && problem.includes("^^^"), `the place is shown: ${problem}`);
    await shoot(page, "plan-refused");
    await define(page, definition(address, "resting"));
    await page.locator(".change", { hasText: "New states: asked, carry, resting, home" }).waitFor();
    await confirm(page, page.getByRole("button", { name: "Apply" }));
    await noticed(page, "Version 1 is active.");
}

async function failAndRetry(page, answers) {
    const errored = page.locator('section[aria-labelledby="errored"] tbody tr');
    for (const name of ["b1", hostile]) await api("PATCH", label(name), { metadata: { ready: true, weight: 4 } });
    await errored.nth(1).waitFor();
    await node(page, "carry").locator("text", { hasText: "2 errored" }).waitFor();
    check((await errored.allInnerTexts()).every((text) => text.includes("500")), "each error has the status of the response");
    await shoot(page, "machine-errored");
    answers.carry = 204;
    await act(page, errored.filter({ hasText: hostile }).locator("form"));
    await noticed(page, "Retrying ");
    await counts(page, "resting", 1);
    await act(page, page.locator('form[data-key="retry-all"]'));
    await page.locator('section[aria-labelledby="errored"]').waitFor({ state: "detached" });
    await counts(page, "resting", 2);
}

// The list: paging, filtering by prefix, and links from the graph by keyboard.
async function lists(page) {
    const names = Array.from({ length: 60 }, (_, n) => ({ name: `bulk-${String(n).padStart(2, "0")}`, metadata: {} }));
    await api("POST", "/state-machines/errands/labels", { labels: names });
    await counts(page, "asked", 60);
    const rows = page.locator('section[aria-labelledby="labels"] tbody tr');
    await go(page, "/dashboard/machines?name=errands&state=asked");
    check((await rows.count()) === 50, "a page has 50 labels");
    await page.locator("#next-page").click();
    await page.getByRole("link", { name: "bulk-59" }).waitFor();
    check((await rows.count()) === 10, "the next page has the rest");
    await page.getByLabel("Name prefix").fill("bulk-3");
    await page.keyboard.press("Enter");
    await until("the ten labels with the prefix", async () => (await rows.count()) === 10 && (await rows.first().innerText()).includes("bulk-30"));
    await node(page, "resting").focus();
    await page.keyboard.press("Enter");
    await rows.filter({ hasText: hostile }).waitFor();
    await until("the labels of one state", async () => (await rows.count()) === 2);
    await page.getByText("at 04:00:00 in").waitFor();
}

// An operation on selected labels, and a task for all that match a filter.
async function bulk(page) {
    await go(page, "/dashboard/machines?name=errands&state=asked");
    const form = page.locator('form[data-key="bulk"]');
    const boxes = page.locator('input[data-select="labels"]');
    await boxes.nth(0).check();
    await boxes.nth(1).check();
    await form.getByLabel("Operation").selectOption("suspend");
    await form.getByRole("button").press("Enter");
    await page.locator("dialog[open]", { hasText: "Operation suspend for 2 selected?" }).waitFor();
    await page.locator("#confirm-yes").press("Enter");
    await noticed(page, "Operation suspend: 2 of 2 done");
    const suspended = async () => (await api("GET", "/state-machines/errands/labels?suspended=true")).labels.length;
    check((await suspended()) === 2, "two labels are suspended");

    await form.getByLabel("Operation").selectOption("move");
    await form.getByLabel("Move to").selectOption("home");
    await form.getByRole("button").press("Enter");
    await page.locator("dialog[open]", { hasText: "Apply the operation move to home to 60 labels in asked?" }).waitFor();
    check((await page.evaluate(() => document.activeElement.id)) === "confirm-no", "a move is confirmed like a deletion");
    const command = await page.locator("#confirm-command").textContent();
    check(command.includes("signalbox labels move errands --to home --state asked") && command.includes("/tasks"), command);
    await page.locator("#confirm-yes").press("Enter");
    await noticed(page, "The task was started");
    const task = page.locator('section[aria-labelledby="tasks"] tbody tr').first();
    await task.getByText("done", { exact: true }).waitFor();
    await task.getByText("move to home").waitFor();
    await counts(page, "home", 60);
    await shoot(page, "machine-task");

    // A task with a rate is canceled before its end.
    await go(page, "/dashboard/machines?name=errands");
    await form.getByLabel("Operation").selectOption("evaluate");
    await form.getByLabel("Labels per second").fill("1");
    await form.getByRole("button").press("Enter");
    // The dialog opens when the labels are counted.
    await page.locator("dialog[open]").waitFor();
    await page.locator("#confirm-yes").press("Enter");
    await task.getByText("running", { exact: true }).waitFor();
    await act(page, task.locator('form[data-key="cancel"]'));
    await task.getByText("canceled", { exact: true }).waitFor();
}

async function one(page, answers) {
    await page.getByRole("link", { name: hostile }).press("Enter");
    await page.locator("#metadata-json", { hasText: markup.slice(0, 10) }).waitFor();
    check((await page.locator("h1").innerText()) === hostile, "the name is shown as text");
    check((await page.locator("main script, main img").count()) === 0, "the name adds no elements");
    check((await page.title()) !== "owned", "the name runs no script");
    await page.locator("#why-tree li", { hasText: "opens the gate if true" }).first().waitFor();
    await api("PATCH", label(hostile), { metadata: { seen: "live" } });
    await page.locator("#metadata-json", { hasText: "live" }).waitFor();
    answers.weather = 500;
    await page.locator("#why-tree", { hasText: "the feed failed" }).waitFor();

    const facts = page.locator('#simulation textarea[name="metadata"]');
    await facts.fill("{again");
    await page.getByRole("button", { name: "Simulate" }).press("Enter");
    check(await facts.evaluate((field) => field.validationMessage.includes("Invalid JSON")), "invalid JSON is not sent");
    await facts.fill(`{"again": true, "ready": false, "note": ${JSON.stringify(markup)}}`);
    await page.getByRole("button", { name: "Simulate" }).press("Enter");
    await page.locator("#simulated ol.steps li", { hasText: "asked" }).waitFor();
    await page.locator("#simulated", { hasText: "Final state: asked" }).waitFor();
    check((await api("GET", label(hostile))).state === "resting", "a simulation changes nothing");
    await shoot(page, "label");
}

async function redefine(page, address) {
    await go(page, "/dashboard/machines?name=errands");
    await page.locator('section[aria-labelledby="feeds"]', { hasText: "failing" }).waitFor();
    await shoot(page, "machine");
    await page.getByRole("link", { name: "New version" }).click();
    await page.locator("#definition").waitFor();
    check((await page.locator("#definition").inputValue()).includes("gate: resting"), "the editor has the active version");
    await define(page, definition(address, "idle"));
    await page.locator(".change", { hasText: "Removed states: resting" }).waitFor();
    await page.getByLabel("Move 2 labels in resting to").selectOption("idle");
    await shoot(page, "plan");
    await confirm(page, page.getByRole("button", { name: "Apply" }));
    await noticed(page, "Version 2 is active.");
    await until("the labels in their new state", async () => (await api("GET", label("b1"))).state === "idle");
    // A label in a state with on_apply: keep stays on its version.
    await go(page, `/dashboard/label?name=errands&label=kept`);
    await page.locator("#kept", { hasText: "Stays on version 1" }).waitFor();
    await go(page, "/dashboard/machines?name=errands");
    await page.locator('section[aria-labelledby="versions"] tr[data-key="1"]', { hasText: "in use" }).locator("td.number", { hasText: /^1$/ }).nth(1).waitFor();
    await go(page, "/dashboard/machines");
    await page.locator('tr[data-key="errands"] td:nth-child(2)', { hasText: "2" }).waitFor();
    await shoot(page, "machines");
}

export async function run(page) {
    const answers = { carry: 500, weather: 200 };
    const app = await server(
        (request) => answers[request.url.split("/")[1]] ?? 404,
        () => JSON.stringify({ sunny: false }),
    );
    await first(page, app.address);
    await go(page, "/dashboard/machines?name=errands");
    check((await page.locator("a.state").count()) === 4, "every state is drawn");
    check((await page.locator("path.way").count()) === 5, "every transition is drawn");
    await api("POST", label("b1"), { metadata: {} });
    await api("POST", label(hostile), { metadata: { note: markup } });
    await counts(page, "asked", 2);
    await failAndRetry(page, answers);
    await lists(page);
    await bulk(page);
    await one(page, answers);
    await api("POST", label("kept"), { metadata: {} });
    await redefine(page, app.address);
    app.stop();
}
