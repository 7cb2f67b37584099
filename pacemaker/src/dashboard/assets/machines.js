// Requests whose responses are shown on the page: simulating a label, and previewing and applying a new version of a
// machine. All content is inserted as text, never as markup.

(() => {
    "use strict";

    const { csrf, notify, confirmed } = window.signalboxActions;

    function element(name, properties = {}, ...children) {
        const created = Object.assign(document.createElement(name), properties);
        created.append(...children);
        return created;
    }

    function line(...children) {
        return element("p", {}, ...children);
    }

    function code(text) {
        return element("code", { textContent: text });
    }

    // The response to a request, or null after its error was shown in `place`.
    async function request(place, path, type, body) {
        let answer;
        try {
            const headers = { "X-Signalbox-CSRF": csrf, "Content-Type": type };
            answer = await fetch(path, { method: "POST", headers, body });
        } catch {
            notify("No response from the pacemaker.", true);
            return null;
        }
        const reply = await answer.json().catch(() => ({}));
        if (answer.ok) return reply;
        // A rejected definition has problems with a line and a caret below the position, so the text stays preformatted.
        const detail = element("pre", { className: "problems", textContent: reply.detail || `Status ${answer.status}` });
        place.replaceChildren(element("p", { className: "bad", textContent: "Request rejected." }), detail);
        return null;
    }

    function read(field) {
        try {
            return JSON.parse(field.value);
        } catch {
            field.setCustomValidity("Invalid JSON.");
            field.reportValidity();
            field.addEventListener("input", () => field.setCustomValidity(""), { once: true });
            throw new Error("invalid JSON");
        }
    }

    function assumptions(form) {
        const body = { for: form.elements.for.value, feeds: {}, webhooks: {} };
        for (const field of [...form.elements].filter((one) => one.name && one.value.trim() !== "")) {
            if (field.name === "metadata") body.metadata = read(field);
            if (field.name === "feed") body.feeds[field.dataset.of] = read(field);
            if (field.name === "webhook") body.webhooks[field.dataset.of] = Number(field.value);
        }
        return body;
    }

    const ends = {
        until: "The time span of the simulation is over.",
        ended: "The label has reached an end state.",
        stuck: "Without a metadata update or an event, the label is not evaluated again.",
        errored: "The action has no attempts left.",
        steps: "Step limit reached.",
    };

    function step(one) {
        const time = element("time", { dateTime: one.at, textContent: new Date(one.at).toLocaleString() });
        const item = element("li", {}, time, " ");
        if (one.to) {
            item.append(code(one.from), " → ", element("strong", { textContent: one.to }));
            item.append(` (${one.cause}${one.trigger ? `, ${one.trigger}` : ""})`);
        } else if (one.attempt) {
            item.append("action ", code(one.attempt), ` answered ${one.status}`);
        } else {
            item.append(element("span", { className: "bad", textContent: `action ${one.errored} failed, no attempts left: ${one.error}` }));
        }
        return item;
    }

    async function simulate(form) {
        const place = document.getElementById("simulated");
        let body;
        try {
            body = assumptions(form);
        } catch {
            return;
        }
        const reply = await request(place, form.dataset.path, "application/json", JSON.stringify(body));
        if (!reply) return;
        const steps = element("ol", { className: "steps" }, ...reply.steps.map(step));
        const end = reply.feed ? `To continue, enter a value for the feed ${reply.feed}.` : ends[reply.end] || reply.end;
        const status = reply.status ? ` (${reply.status})` : "";
        const last = line("Final state: ", element("strong", { textContent: reply.state }), `${status}. ${end}`);
        place.replaceChildren(reply.steps.length ? steps : line("No steps."), last);
    }

    function list(title, names) {
        if (!names.length) return [];
        return [line(`${title}: `, ...names.flatMap((name, n) => (n ? [", ", code(name)] : [code(name)])))];
    }

    // The new state for the labels of a removed state.
    function choice(from, count, targets) {
        const select = element("select", { name: from, required: true }, element("option", { value: "", textContent: "select a state" }));
        select.append(...targets.map((name) => element("option", { textContent: name })));
        return element("label", {}, `Move ${count} labels in ${from} to`, select);
    }

    async function apply(form, plan, question) {
        const map = Object.fromEntries([...form.elements].filter((one) => one.name).map((one) => [one.name, one.value]));
        if (!(await confirmed(question))) return;
        const place = document.getElementById("applied");
        const reply = await request(place, `${form.dataset.path}/apply`, "application/json", JSON.stringify({ plan, map }));
        if (!reply) return;
        document.getElementById("planned").replaceChildren();
        notify(`Version ${reply.version} is active.`, false);
    }

    function show(place, form, preview) {
        const { added, removed, changed } = preview.states;
        const none = !added.length && !removed.length && !changed.length && !preview.changed.length;
        const occupied = removed.filter((state) => preview.labels[state] > 0);
        const kept = JSON.parse(form.dataset.states).filter((state) => !removed.includes(state));
        const choices = occupied.map((state) => choice(state, preview.labels[state], [...kept, ...added]));
        const question =
            preview.version === 0 ? "Create this machine?" : `Replace version ${preview.version} with this definition?`;
        const applying = element("form", {}, element("div", { className: "row" }, ...choices));
        applying.dataset.path = form.dataset.path;
        applying.append(element("button", { className: "primary", textContent: "Apply" }));
        applying.addEventListener("submit", (event) => {
            event.preventDefault();
            apply(applying, preview.plan, question);
        });
        const moves = `${preview.would_move} of ${preview.checked} checked labels would move if their gates were evaluated now`;
        const feeds = preview.needs_feed ? `; ${preview.needs_feed} depend on a feed` : "";
        const change = element("div", { className: "change" }, ...list("New states", added), ...list("Removed states", removed));
        change.append(...list("Changed states", changed), ...list("Other changes", preview.changed));
        if (none) change.append(line("No changes."));
        if (preview.starts) change.append(line(`${preview.starts} labels continue immediately, because the kind of their state changes.`));
        if (preview.version > 0) change.append(line(`${moves}${feeds}.`));
        const warnings = preview.warnings.map((text) => element("pre", { className: "problems", textContent: text }));
        const applyResult = element("div", { id: "applied" });
        place.replaceChildren(element("h2", { textContent: "Changes" }), change, ...warnings, applying, applyResult);
    }

    async function plan(form) {
        const place = document.getElementById("planned");
        const text = document.getElementById("definition").value;
        const preview = await request(place, `${form.dataset.path}/plan`, "application/yaml", text);
        if (preview) show(place, form, preview);
    }

    document.addEventListener("submit", (event) => {
        const handler = { simulation: simulate, planning: plan }[event.target.id];
        if (!handler) return;
        event.preventDefault();
        handler(event.target);
    });

    document.addEventListener("change", async (event) => {
        if (event.target.id !== "definition-file" || !event.target.files.length) return;
        document.getElementById("definition").value = await event.target.files[0].text();
    });
})();
