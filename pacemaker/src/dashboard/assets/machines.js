// What has an answer to be shown: where a label would go, and what another definition would change. All of it is put in
// place as text, never as markup.

(() => {
    "use strict";

    const { csrf, tell, confirmed } = window.signalboxActions;

    function element(name, properties = {}, ...children) {
        const made = Object.assign(document.createElement(name), properties);
        made.append(...children);
        return made;
    }

    function line(...children) {
        return element("p", {}, ...children);
    }

    function code(text) {
        return element("code", { textContent: text });
    }

    // The answer of a request, or null after its refusal was shown in `place`.
    async function ask(place, path, type, body) {
        let answer;
        try {
            const headers = { "X-Signalbox-CSRF": csrf, "Content-Type": type };
            answer = await fetch(path, { method: "POST", headers, body });
        } catch {
            tell("The pacemaker does not answer.", true);
            return null;
        }
        const said = await answer.json().catch(() => ({}));
        if (answer.ok) return said;
        // A refused definition brings each problem with its line, and a caret below the place: that needs its columns.
        const detail = element("pre", { className: "problems", textContent: said.detail || `Refused: ${answer.status}` });
        place.replaceChildren(element("p", { className: "bad", textContent: "It was refused." }), detail);
        return null;
    }

    function read(field) {
        try {
            return JSON.parse(field.value);
        } catch {
            field.setCustomValidity("This is no JSON.");
            field.reportValidity();
            field.addEventListener("input", () => field.setCustomValidity(""), { once: true });
            throw new Error("no JSON");
        }
    }

    function assumed(form) {
        const body = { for: form.elements.for.value, feeds: {}, webhooks: {} };
        for (const field of [...form.elements].filter((one) => one.name && one.value.trim() !== "")) {
            if (field.name === "metadata") body.metadata = read(field);
            if (field.name === "feed") body.feeds[field.dataset.of] = read(field);
            if (field.name === "webhook") body.webhooks[field.dataset.of] = Number(field.value);
        }
        return body;
    }

    const ends = {
        until: "Then the time that was asked for is over.",
        ended: "There it has come to its end.",
        stuck: "Then nothing looks at it any more, unless facts or events come.",
        errored: "Its action has failed for good then.",
        steps: "It goes on like this: more steps are not looked at.",
    };

    function step(one) {
        const time = element("time", { dateTime: one.at, textContent: new Date(one.at).toLocaleString() });
        const item = element("li", {}, time, " ");
        if (one.to) {
            item.append(code(one.from), " → ", element("strong", { textContent: one.to }));
            item.append(` (${one.cause}${one.trigger ? `, ${one.trigger}` : ""})`);
        } else if (one.attempt) {
            item.append("tries ", code(one.attempt), `, which answers ${one.status}`);
        } else {
            item.append(element("span", { className: "bad", textContent: `${one.errored} fails for good: ${one.error}` }));
        }
        return item;
    }

    async function simulate(form) {
        const place = document.getElementById("simulated");
        let body;
        try {
            body = assumed(form);
        } catch {
            return;
        }
        const said = await ask(place, form.dataset.path, "application/json", JSON.stringify(body));
        if (!said) return;
        const steps = element("ol", { className: "steps" }, ...said.steps.map(step));
        const end = said.feed ? `Then the feed ${said.feed} would have to be known.` : ends[said.end] || said.end;
        const last = line("It is in ", element("strong", { textContent: said.state }), ` then, ${said.status || ""}. ${end}`);
        place.replaceChildren(said.steps.length ? steps : line("It makes no step."), last);
    }

    function list(title, names) {
        if (!names.length) return [];
        return [line(`${title}: `, ...names.flatMap((name, n) => (n ? [", ", code(name)] : [code(name)])))];
    }

    // Where the labels of a state that goes are put.
    function choice(from, count, targets) {
        const select = element("select", { name: from, required: true }, element("option", { value: "", textContent: "choose" }));
        select.append(...targets.map((name) => element("option", { textContent: name })));
        return element("label", {}, `${count} in ${from} go to`, select);
    }

    async function apply(form, plan, question) {
        const map = Object.fromEntries([...form.elements].filter((one) => one.name).map((one) => [one.name, one.value]));
        if (!(await confirmed(question))) return;
        const place = document.getElementById("applied");
        const said = await ask(place, `${form.dataset.path}/apply`, "application/json", JSON.stringify({ plan, map }));
        if (!said) return;
        document.getElementById("planned").replaceChildren();
        tell(`Version ${said.version} counts now.`, false);
    }

    function show(place, form, said) {
        const { added, removed, changed } = said.states;
        const none = !added.length && !removed.length && !changed.length && !said.changed.length;
        const wanted = removed.filter((state) => said.labels[state] > 0);
        const kept = JSON.parse(form.dataset.states).filter((state) => !removed.includes(state));
        const choices = wanted.map((state) => choice(state, said.labels[state], [...kept, ...added]));
        const question =
            said.version === 0 ? "Make this machine?" : `Make this the definition after version ${said.version}?`;
        const applying = element("form", {}, element("div", { className: "row" }, ...choices));
        applying.dataset.path = form.dataset.path;
        applying.append(element("button", { className: "primary", textContent: "Apply" }));
        applying.addEventListener("submit", (event) => {
            event.preventDefault();
            apply(applying, said.plan, question);
        });
        const moves = `${said.would_move} of ${said.checked} labels at gates would move if their gate looked now`;
        const feeds = said.needs_feed ? `; of ${said.needs_feed} only a feed could tell` : "";
        const change = element("div", { className: "change" }, ...list("New states", added), ...list("States that go", removed));
        change.append(...list("States that say something else", changed), ...list("What else is new", said.changed));
        if (none) change.append(line("It stays as it is."));
        if (said.starts) change.append(line(`${said.starts} labels go on at once, because their state becomes something else.`));
        if (said.version > 0) change.append(line(`${moves}${feeds}.`));
        const warnings = said.warnings.map((text) => element("pre", { className: "problems", textContent: text }));
        const refused = element("div", { id: "applied" });
        place.replaceChildren(element("h2", { textContent: "What it would change" }), change, ...warnings, applying, refused);
    }

    async function plan(form) {
        const place = document.getElementById("planned");
        const text = document.getElementById("definition").value;
        const said = await ask(place, `${form.dataset.path}/plan`, "application/yaml", text);
        if (said) show(place, form, said);
    }

    document.addEventListener("submit", (event) => {
        const asked = { simulation: simulate, planning: plan }[event.target.id];
        if (!asked) return;
        event.preventDefault();
        asked(event.target);
    });

    document.addEventListener("change", async (event) => {
        if (event.target.id !== "definition-file" || !event.target.files.length) return;
        document.getElementById("definition").value = await event.target.files[0].text();
    });
})();
