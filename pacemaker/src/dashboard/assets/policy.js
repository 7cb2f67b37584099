// The editor of a host's policy. The JSON in the text area is what is saved: the fields and the table of paths show parts of
// it and change them, so a part without a field is kept.

(() => {
    "use strict";

    const form = document.getElementById("policy-form");
    if (!form) return;
    const { csrf, notify, confirmed, quoted, differences } = window.signalboxActions;
    const text = document.getElementById("policy-json");
    const whole = document.getElementById("policy-whole");
    const rows = document.querySelector("#policy-paths tbody");
    const problem = document.getElementById("policy-problem");
    const fields = [...form.querySelectorAll("[data-kind]")];
    let saved = JSON.parse(text.value);
    let policy = structuredClone(saved);

    const at = (value, path) => path.split(".").reduce((part, name) => part?.[name], value);

    // Sets a value, or removes it together with the objects that it leaves empty.
    function put(value, [name, ...rest], wanted) {
        if (!rest.length) {
            if (wanted === undefined) delete value[name];
            else value[name] = wanted;
            return;
        }
        if (typeof value[name] !== "object" || value[name] === null) {
            if (wanted === undefined) return;
            value[name] = {};
        }
        put(value[name], rest, wanted);
        if (!Object.keys(value[name]).length) delete value[name];
    }

    function valueOf(field) {
        const typed = field.value.trim();
        if (!typed) return undefined;
        switch (field.dataset.kind) {
            case "number": return Number.isFinite(Number(typed)) ? Number(typed) : typed;
            case "select": return /^(\d+|true|false)$/.test(typed) ? JSON.parse(typed) : typed;
            case "lines": return typed.split(/\s*[\n,]\s*/);
            case "words": return typed.split(/[\s,]+/);
            default: return typed;
        }
    }

    function shown(value, kind) {
        if (value === undefined || value === null) return "";
        if (Array.isArray(value)) return value.join(kind === "lines" ? "\n" : " ");
        return typeof value === "object" ? "" : String(value);
    }

    const write = () => (text.value = JSON.stringify(policy, null, 2));

    function input(label, value, change) {
        const made = document.createElement("input");
        made.value = value ?? "";
        made.setAttribute("aria-label", label);
        made.addEventListener("input", () => change(made.value.trim()));
        return made;
    }

    function select(label, choices, value, change) {
        const made = document.createElement("select");
        made.setAttribute("aria-label", label);
        made.append(...choices.map(([name, word]) => new Option(word, name, false, name === value)));
        made.addEventListener("change", () => change(made.value));
        return made;
    }

    // A row changes its own rule only: access and redirect of a rule stay.
    function row(rule, place) {
        const line = document.createElement("tr");
        const set = (name, value) => {
            if (value === "" || value === false) delete rule[name];
            else rule[name] = value;
            write();
        };
        const remove = document.createElement("button");
        remove.type = "button";
        remove.textContent = "Remove";
        remove.setAttribute("aria-label", `Remove the rule for ${rule.path || "the new path"}`);
        remove.addEventListener("click", () => {
            policy.paths.splice(place, 1);
            if (!policy.paths.length) delete policy.paths;
            write();
            listPaths();
            document.getElementById("add-path").focus();
        });
        const named = `of rule ${place + 1}`;
        const cells = [
            input(`Path ${named}`, rule.path, (value) => (rule.path = value, write())),
            select(`Applies to ${named}`, [["", "the path and all below"], ["exact", "this path only"]], rule.match ?? "", (value) => set("match", value)),
            input(`Host ${named}`, rule.service, (value) => set("service", value)),
            select(`Prefix ${named}`, [["", "kept"], ["strip", "removed"]], rule.strip ? "strip" : "", (value) => set("strip", value === "strip")),
            remove,
        ];
        line.append(...cells.map((cell) => {
            const column = document.createElement("td");
            column.append(cell);
            return column;
        }));
        return line;
    }

    const listPaths = () => rows.replaceChildren(...(Array.isArray(policy.paths) ? policy.paths : []).map(row));

    function show() {
        fields.forEach((field) => (field.value = shown(at(policy, field.name), field.dataset.kind)));
        listPaths();
    }

    form.addEventListener("input", (event) => {
        const field = event.target;
        unmark();
        if (field === text) {
            try {
                policy = JSON.parse(text.value);
                show();
            } catch (error) {
                mark(text, `The JSON is not complete: ${error.message}`);
            }
        } else if (field.dataset.kind) {
            put(policy, field.name.split("."), valueOf(field));
            write();
        }
    });

    document.getElementById("add-path").addEventListener("click", () => {
        policy.paths = [...(policy.paths ?? []), { path: "/" }];
        write();
        listPaths();
        rows.lastElementChild.querySelector("input").focus();
    });

    function unmark() {
        problem.hidden = true;
        form.querySelectorAll("[aria-invalid]").forEach((field) => {
            field.removeAttribute("aria-invalid");
            field.removeAttribute("aria-describedby");
        });
        form.querySelectorAll(".wrong").forEach((message) => message.remove());
    }

    // Shows a message at the field that it is about; otherwise above the button.
    function mark(field, message) {
        unmark();
        if (!field) {
            problem.textContent = message;
            problem.hidden = false;
            return;
        }
        const line = document.createElement("small");
        line.className = "wrong bad";
        line.id = "policy-wrong";
        line.setAttribute("role", "alert");
        line.textContent = message;
        if (field === text) whole.open = true;
        field.setAttribute("aria-invalid", "true");
        field.setAttribute("aria-describedby", line.id);
        field.after(line);
    }

    // The API names the field as the editor does. Of a path rule it names the list.
    function fieldOf(name) {
        if (!name) return null;
        if (name.startsWith("paths")) return rows.querySelector("input");
        return fields.find((field) => field.name === name) ?? fields.find((field) => field.name.startsWith(`${name}.`)) ?? text;
    }

    // What is saved must still have this revision; 0 is no policy.
    let { revision } = form.dataset;

    const precondition = () => (revision === "0" ? { "If-None-Match": "*" } : { "If-Match": `"${revision}"` });

    // The revision of the policy that was just saved. If it is another one by now, the next save has to fail, so the old one
    // stays.
    async function revisionOf(path, wanted) {
        const answer = await fetch(path).catch(() => null);
        const found = answer?.ok ? await answer.json().catch(() => null) : null;
        const same = found && JSON.stringify(found.rules ?? {}) === JSON.stringify(wanted);
        return same ? (answer.headers.get("ETag") ?? revision).replaceAll('"', "") : revision;
    }

    // Another client has saved the policy. What it changed is shown and, if it is wanted, taken over: the fields keep what was
    // typed. The next save replaces the policy that is shown here, not the one that the editor began with.
    async function conflict(path) {
        const answer = await fetch(path).catch(() => null);
        const found = answer?.ok ? await answer.json() : {};
        const theirs = found.rules ?? {};
        const changed = differences(saved, theirs);
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = "Take over these changes";
        const before = saved;
        button.addEventListener("click", () => {
            adopt(policy, before, theirs);
            write();
            show();
            problem.hidden = true;
            notify("Taken over. Check the policy, and save it.", false);
        });
        const list = document.createElement("ul");
        list.append(...changed.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
        problem.replaceChildren("Not saved: another client has changed this policy in the meantime. Your input is still there.", list, button);
        problem.hidden = false;
        button.focus();
        revision = answer?.ok ? (answer.headers.get("ETag") ?? '"0"').replaceAll('"', "") : "0";
        saved = theirs;
    }

    // Applies to `mine` what differs between two other policies, except for what differs from both in it.
    function adopt(mine, before, theirs) {
        const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
        const equal = (a, b) => JSON.stringify(a) === JSON.stringify(b);
        for (const name of new Set([...Object.keys(before ?? {}), ...Object.keys(theirs ?? {})])) {
            const [now, old, wanted] = [mine[name], before?.[name], theirs?.[name]];
            if (equal(old, wanted)) continue;
            if (isObject(now) && (isObject(old) || isObject(wanted))) {
                adopt(now, isObject(old) ? old : {}, isObject(wanted) ? wanted : {});
                if (!Object.keys(now).length) delete mine[name];
            } else if (equal(now, old)) {
                if (wanted === undefined) delete mine[name];
                else mine[name] = structuredClone(wanted);
            }
        }
    }

    form.addEventListener("submit", async (event) => {
        event.preventDefault();
        let wanted;
        try {
            wanted = JSON.parse(text.value);
        } catch (error) {
            mark(text, `The JSON is not complete: ${error.message}`);
            text.focus();
            return;
        }
        const changed = differences(saved, wanted);
        if (!changed.length) {
            notify("Nothing has changed.", false);
            return;
        }
        const { host, path } = form.dataset;
        const body = JSON.stringify(wanted);
        const command = `signalbox hosts set-policy ${host} --file policy.json\n\ncurl -X PUT ${quoted(location.origin + path)} \\\n  -H "Authorization: Bearer $TOKEN" \\\n  -H '${revision === "0" ? "If-None-Match: *" : `If-Match: "${revision}"`}' \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(body)}`;
        const question = `Change the policy of ${host}?\n${changed.join("\n")}`;
        if (!(await confirmed(question, { label: "Save policy", command }))) return;
        unmark();
        const answer = await fetch(path, { method: "PUT", headers: { "X-Signalbox-CSRF": csrf, "Content-Type": "application/json", ...precondition() }, body }).catch(() => null);
        if (!answer) {
            mark(null, "No response from the pacemaker. The change may still have been applied; check before retrying.");
            return;
        }
        if (answer.status === 412) {
            await conflict(path);
            return;
        }
        const result = await answer.json().catch(() => ({}));
        if (!answer.ok) {
            const field = fieldOf(result.field);
            mark(field, result.detail || `Request rejected (${answer.status}).`);
            if (field) field.focus();
            return;
        }
        saved = result.rules ?? {};
        policy = structuredClone(saved);
        // The answer has no ETag. If another client saved in between, the next save is rejected, and shows what differs.
        revision = await revisionOf(path, saved);
        write();
        show();
        notify(`Saved the policy of ${host}.`, false);
    });

    show();
})();
