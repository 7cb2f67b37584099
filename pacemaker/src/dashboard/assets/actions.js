// Forms that send a request to the API:
//   data-method, data-path   method and path of the request
//   data-base                initial body as JSON; the fields of the form are added to it
//   data-without             a field to remove from the initial body
//   data-confirm             the question to confirm before the request; {name} is the value of a field, {name|text} with a text
//                            in place of an empty one, {name||text} with a text before one that is not empty
//   data-yes, data-danger    the text of the button that confirms it; whether the request destroys something
//   data-cli                 the command of `signalbox` that does the same
//   data-done                the notice after success
//   data-revision            the revision that the page shows: a request for another one is rejected
//   data-current, data-part  after that, where the current state is read, and which member of it
//   data-shown               the state that the page shows, if it is not data-base
//   data-patch               only changed fields are sent, and the question lists them
//   data-each, data-select   if rows are selected, their path ({} is the value of the row), and the name of their checkboxes
//   data-selection           why the form needs selected rows
//   data-count               the address of a list with `total`, which replaces {count} in the question
// A field's data-json is the type of its value: "number", "limit" (a number, or null if empty), "share" (one entry of `shares`),
// "range" (minutes until now), "path" (a part of the path), "optional" (absent if empty), or text if absent. The name of a
// field may be a path: `filter.state`. A button with data-bulk submits all forms of that name, or those of selected rows.

(() => {
    "use strict";

    const csrf = document.querySelector('meta[name="csrf"]').content;
    const dialog = document.getElementById("confirm");
    const notices = document.getElementById("notices");

    // Notices cover the page, so only the newest are shown, and a click removes one.
    const MAX_NOTICES = 2;

    function notify(text, bad) {
        const others = [...notices.children].filter((one) => !one.classList.contains("bulk"));
        others.slice(0, Math.max(0, others.length - MAX_NOTICES + 1)).forEach((one) => one.remove());
        const line = document.createElement("p");
        line.textContent = text;
        line.className = bad ? "bad" : "good";
        line.addEventListener("click", () => line.remove());
        notices.append(line);
        setTimeout(() => line.remove(), bad ? 15000 : 5000);
    }

    const yes = document.getElementById("confirm-yes");
    const no = document.getElementById("confirm-no");
    const commands = document.getElementById("confirm-command");

    // Asks before a request. What destroys something is red, and the focus is on the other button.
    function confirmed(text, { label = "Yes", danger = false, command = "" } = {}) {
        document.getElementById("confirm-text").textContent = text;
        yes.textContent = label;
        yes.className = danger ? "danger" : "primary";
        commands.textContent = command;
        commands.parentElement.hidden = !command;
        dialog.returnValue = "";
        dialog.showModal();
        (danger ? no : yes).focus();
        return new Promise((resolve) => {
            dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
        });
    }

    // A field with data-with is for one operation only.
    const applies = (field, form) => !field.disabled && [undefined, form.elements.operation?.value].includes(field.dataset?.with);

    function fill(text, form) {
        return text.replace(/\{([\w.]+)(?:\|([^|}]*))?(?:\|([^}]*))?\}/g, (all, name, none, before = "") => {
            const field = form.elements[name];
            return field?.value && applies(field, form) ? before + field.value : (none ?? all);
        });
    }

    function pathOf(form) {
        const inPath = [...form.elements].filter((field) => field.dataset.json === "path");
        return inPath.reduce((path, { name, value }) => path.replace(`{${name}}`, encodeURIComponent(value)), form.dataset.path);
    }

    const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

    // The same request in a shell.
    function command(form) {
        const body = bodyOf(form);
        const { revision } = form.dataset;
        const lines = [`curl -X ${form.dataset.method} ${quoted(location.origin + pathOf(form))}`, `-H "Authorization: Bearer $TOKEN"`];
        if (revision) lines.push(`-H 'If-Match: "${revision}"'`);
        if (body !== undefined) lines.push(`-H 'Content-Type: application/json'`, `-d ${quoted(body)}`);
        const curl = lines.join(" \\\n  ");
        return form.dataset.cli ? `${fill(form.dataset.cli, form)}\n\n${curl}` : curl;
    }

    // Sets a member of a member: `filter.state`.
    function place(body, [name, ...rest], value) {
        if (rest.length) place((body[name] ??= {}), rest, value);
        else body[name] = value;
    }

    // The value of a field before it was changed.
    function original(field) {
        if (field.tagName !== "SELECT") return field.defaultValue;
        return ([...field.options].find((one) => one.defaultSelected) ?? field.options[0]).value;
    }

    const changedFields = (form) => [...form.elements].filter((field) => field.name && field.value !== original(field));

    function put(body, field) {
        const value = field.value;
        switch (field.dataset.json) {
            case "number":
                body[field.name] = Number(value);
                break;
            case "limit":
                body[field.name] = value === "" ? null : Number(value);
                break;
            case "optional":
                if (value) place(body, field.name.split("."), field.type === "number" ? Number(value) : value);
                break;
            case "share":
                body.shares.push({ version_type: field.dataset.version, percent: Number(value) });
                break;
            case "path":
                break;
            case "range":
                body.to = new Date().toISOString();
                body.from = new Date(Date.parse(body.to) - Number(value) * 60000).toISOString();
                break;
            default:
                body[field.name] = value;
        }
    }

    function bodyOf(form) {
        const patch = form.hasAttribute("data-patch");
        const fields = patch ? changedFields(form) : [...form.elements].filter((field) => field.name && applies(field, form));
        if (!fields.length && !form.dataset.base) return undefined;
        const body = JSON.parse(form.dataset.base || "{}");
        if (form.dataset.without) delete body[form.dataset.without];
        if (fields.some((field) => field.dataset.json === "share")) body.shares = [];
        fields.forEach((field) => put(body, field));
        return JSON.stringify(body);
    }

    // Each value that differs, with the old and the new one.
    function differences(before, after, path = "") {
        const simple = (value) => typeof value !== "object" || value === null || Array.isArray(value);
        if (JSON.stringify(before) === JSON.stringify(after)) return [];
        if ((before !== undefined && simple(before)) || (after !== undefined && simple(after))) {
            const word = (value) => (value === undefined ? "default" : JSON.stringify(value));
            return [`${path || "all"}: ${word(before)} → ${word(after)}`];
        }
        const names = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
        return [...names].flatMap((name) => differences(before?.[name], after?.[name], path ? `${path}.${name}` : name));
    }

    // What another client changed since the page was shown.
    async function conflict(form) {
        const { current, part, shown, base } = form.dataset;
        const answer = await fetch(current || pathOf(form)).catch(() => null);
        const now = answer?.ok ? await answer.json().catch(() => ({})) : {};
        const before = JSON.parse(shown || base || "{}");
        // Without a part, the answer has more members than the request, such as numbers.
        const after = part ? now[part] ?? {} : Object.fromEntries(Object.keys(before).map((name) => [name, name in now ? now[name] : before[name]]));
        // A form without the whole state in its base can be sent again immediately. Others wait for the update of the page.
        const revision = answer?.headers.get("ETag")?.replaceAll('"', "");
        if (revision && (shown || !base) && form.source) Object.assign(form.source.dataset, { revision, shown: JSON.stringify(after) });
        const changed = differences(before, after).join("\n");
        return `Not saved: another client has changed this in the meantime.${changed && `\n${changed}`}\nYour input is still there. Check it, and try again.`;
    }

    // Sends the request of a form. Returns why it failed, or what to say about the success.
    async function send(form, path = pathOf(form)) {
        const { method, done, revision } = form.dataset;
        const headers = { "X-Signalbox-CSRF": csrf };
        const body = bodyOf(form);
        if (body !== undefined) headers["Content-Type"] = "application/json";
        if (revision) headers["If-Match"] = `"${revision}"`;
        let answer;
        try {
            answer = await fetch(path, { method, headers, body });
        } catch {
            return { error: "No response from the pacemaker. The change may still have been applied; check before retrying." };
        }
        const result = await answer.json().catch(() => ({}));
        if (answer.status === 412) return { error: await conflict(form) };
        if (!answer.ok) return { error: result.detail || `Request rejected (${answer.status}).` };
        // The own change is no conflict for the other forms of the page, which is updated a moment later.
        const tag = answer.headers.get("ETag")?.replaceAll('"', "");
        if (revision && tag) document.querySelectorAll(`form[data-revision="${revision}"]`).forEach((one) => (one.dataset.revision = tag));
        if (result.delivered === false) return { error: `Delivery failed: ${result.why}` };
        return { done: fill(done || "Done.", form).replace("{messages}", result.messages) };
    }

    async function act(form) {
        const { error, done } = await send(form);
        notify(error || done, Boolean(error));
    }

    // Sends many requests one after another, with progress. What was sent is not undone by a cancellation.
    async function each(title, jobs) {
        const line = document.createElement("p");
        const bar = Object.assign(document.createElement("progress"), { max: jobs.length, value: 0 });
        bar.setAttribute("aria-label", title);
        const count = document.createElement("span");
        const cancel = Object.assign(document.createElement("button"), { type: "button", textContent: "Cancel" });
        let canceled = false;
        cancel.addEventListener("click", () => (canceled = true));
        line.className = "good bulk";
        line.append(`${title} `, bar, " ", count, " ", cancel);
        notices.prepend(line);
        const errors = [];
        let done = 0;
        for (const job of jobs) {
            if (canceled) break;
            const { error } = await job();
            if (error) errors.push(error);
            done += 1;
            bar.value = done;
            count.textContent = `${done} of ${jobs.length}`;
        }
        line.remove();
        const failed = errors.length ? ` ${errors.length} failed, the first: ${errors[0]}` : "";
        notify(`${title}: ${done - errors.length} of ${jobs.length} done${canceled ? ", then canceled" : ""}.${failed}`, errors.length > 0);
    }

    const selected = (name) => (name ? [...document.querySelectorAll(`input[data-select="${name}"]:checked`)] : []);

    // For scripts that show the responses to their requests.
    window.signalboxActions = { csrf, notify, confirmed, quoted, differences };

    // A copy: the page may change while the dialog is open, and the request must match the confirmed question.
    function copied(form) {
        const copy = form.cloneNode(true);
        copy.source = form;
        [...form.elements].forEach((field, index) => (copy.elements[index].value = field.value));
        return copy;
    }

    // The label of a field, without its hint and value.
    const labelOf = (field) => field.getAttribute("aria-label") || field.closest("label")?.firstChild.textContent.trim() || field.name;

    async function question(form) {
        const { confirm, count } = form.dataset;
        const lines = form.hasAttribute("data-patch")
            ? changedFields(form).map((field) => `${labelOf(field)}: ${original(field) || "none"} → ${field.value || "none"}`)
            : [];
        let text = [fill(confirm, form), ...lines].join("\n");
        if (!count || !text.includes("{count}")) return text;
        const answer = await fetch(fill(count, form)).catch(() => null);
        const found = answer?.ok ? await answer.json() : {};
        const number = found.total === undefined ? "an unknown number of" : `${found.total_is_exact === false ? "at least " : ""}${found.total}`;
        return text.replaceAll("{count}", number);
    }

    document.addEventListener("submit", async (event) => {
        const form = event.target;
        if (!form.classList.contains("act")) return;
        event.preventDefault();
        const { yes: label, each: one, select } = form.dataset;
        const danger = form.hasAttribute("data-danger") || form.querySelector("option:checked[data-danger]") !== null;
        const rows = selected(select).map((box) => box.value);
        const snapshot = copied(form);
        if (form.hasAttribute("data-patch") && !changedFields(snapshot).length) {
            notify("Nothing has changed.", false);
            return;
        }
        if (rows.length) {
            // The filter and the rate are for all that match, not for a selection.
            snapshot.dataset.without = "filter";
            snapshot.querySelectorAll("[data-all]").forEach((field) => (field.disabled = true));
            const paths = rows.map((value) => one.replace("{}", encodeURIComponent(value)));
            const first = snapshot.cloneNode(true);
            [...snapshot.elements].forEach((field, place) => (first.elements[place].value = field.value));
            first.dataset.path = paths[0];
            delete first.dataset.cli;
            const text = `${fill(form.dataset.title, snapshot)} for ${rows.length} selected?\n${rows.slice(0, 5).join(", ")}${rows.length > 5 ? ", …" : ""}`;
            if (!(await confirmed(text, { label, danger, command: `# for each of them\n${command(first)}` }))) return;
            await each(fill(form.dataset.title, snapshot), paths.map((path) => () => send(snapshot, path)));
            selected(select).forEach((box) => (box.checked = false));
            return;
        }
        if (form.dataset.selection) {
            notify(form.dataset.selection, true);
            return;
        }
        if (form.dataset.confirm) {
            const text = await question(snapshot);
            if (!(await confirmed(text, { label, danger, command: command(snapshot) }))) return;
        }
        await act(snapshot);
    });

    document.addEventListener("click", async (event) => {
        const button = event.target.closest("button[data-bulk]");
        if (!button) return;
        const all = [...document.querySelectorAll(`form[data-bulk="${button.dataset.bulk}"]`)];
        const chosen = all.filter((form) => form.closest("tr")?.querySelector("input[data-select]:checked"));
        const forms = (chosen.length ? chosen : all).map(copied);
        if (!forms.length) return;
        const text = button.dataset.confirm.replace("{count}", `${chosen.length ? "" : "all "}${forms.length}`);
        const danger = button.hasAttribute("data-danger");
        const commands = `# the first of ${forms.length}\n${command(forms[0])}`;
        if (!(await confirmed(text, { label: button.dataset.yes || button.textContent, danger, command: commands }))) return;
        await each(button.textContent, forms.map((form) => () => send(form)));
        chosen.forEach((form) => (form.closest("tr").querySelector("input[data-select]").checked = false));
    });

    // The box in the head of a table selects all rows of the page.
    document.addEventListener("change", (event) => {
        const { selectAll } = event.target.dataset ?? {};
        if (!selectAll) return;
        document.querySelectorAll(`input[data-select="${selectAll}"]`).forEach((box) => (box.checked = event.target.checked));
    });
})();
