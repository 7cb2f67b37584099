// Forms that send a request to the API:
//   data-method, data-path   method and path of the request
//   data-base                initial body as JSON; the fields of the form are added to it
//   data-without             a field to remove from the initial body
//   data-confirm             the question to confirm before the request; {name} is the value of a field
//   data-yes, data-danger    the text of the button that confirms it; whether the request destroys something
//   data-cli                 the command of `signalbox` that does the same
//   data-done                the notice after success
// A field's data-json is the type of its value: "number", "share" (one entry of `shares`), "range" (minutes until now),
// "path" (a part of the path, not of the body), or text if absent. A button with data-bulk submits all forms of that name.

(() => {
    "use strict";

    const csrf = document.querySelector('meta[name="csrf"]').content;
    const dialog = document.getElementById("confirm");
    const notices = document.getElementById("notices");

    // Notices cover the page, so only the newest are shown, and a click removes one.
    const MAX_NOTICES = 2;

    function notify(text, bad) {
        while (notices.children.length >= MAX_NOTICES) notices.firstElementChild.remove();
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

    const fill = (text, form) => text.replace(/\{(\w+)\}/g, (all, name) => form.elements[name]?.value ?? all);

    function pathOf(form) {
        const inPath = [...form.elements].filter((field) => field.dataset.json === "path");
        return inPath.reduce((path, { name, value }) => path.replace(`{${name}}`, encodeURIComponent(value)), form.dataset.path);
    }

    const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

    // The same request in a shell.
    function command(form) {
        const body = bodyOf(form);
        const lines = [`curl -X ${form.dataset.method} ${quoted(location.origin + pathOf(form))}`, `-H "Authorization: Bearer $TOKEN"`];
        if (body !== undefined) lines.push(`-H 'Content-Type: application/json'`, `-d ${quoted(body)}`);
        const curl = lines.join(" \\\n  ");
        return form.dataset.cli ? `${form.dataset.cli}\n\n${curl}` : curl;
    }

    function put(body, field) {
        const value = field.value;
        switch (field.dataset.json) {
            case "number":
                body[field.name] = Number(value);
                break;
            case "share":
                body.shares.push({ version_type: field.dataset.version, percent: Number(value) });
                break;
            case "path":
                break;
            case "range":
                body.to = Date.now();
                body.from = body.to - Number(value) * 60000;
                break;
            default:
                body[field.name] = value;
        }
    }

    function bodyOf(form) {
        const fields = [...form.elements].filter((field) => field.name);
        if (!fields.length && !form.dataset.base) return undefined;
        const body = JSON.parse(form.dataset.base || "{}");
        if (form.dataset.without) delete body[form.dataset.without];
        if (fields.some((field) => field.dataset.json === "share")) body.shares = [];
        fields.forEach((field) => put(body, field));
        return JSON.stringify(body);
    }

    async function act(form) {
        const { method, done } = form.dataset;
        const path = pathOf(form);
        const headers = { "X-Signalbox-CSRF": csrf };
        const body = bodyOf(form);
        if (body !== undefined) headers["Content-Type"] = "application/json";
        let answer;
        try {
            answer = await fetch(path, { method, headers, body });
        } catch {
            notify("No response from the pacemaker. The change may still have been applied; check before retrying.", true);
            return;
        }
        if (answer.ok) {
            const result = await answer.json().catch(() => ({}));
            if (result.delivered === false) {
                notify(`Delivery failed: ${result.why}`, true);
                return;
            }
            notify(done || "Done.", false);
            return;
        }
        const problem = await answer.json().catch(() => ({}));
        notify(problem.detail || `Request rejected (${answer.status}).`, true);
    }

    // For scripts that show the responses to their requests.
    window.signalboxActions = { csrf, notify, confirmed, quoted };

    // A copy: the page may change while the dialog is open, and the request must match the confirmed question.
    function copied(form) {
        const copy = form.cloneNode(true);
        [...form.elements].forEach((field, index) => (copy.elements[index].value = field.value));
        return copy;
    }

    document.addEventListener("submit", async (event) => {
        const form = event.target;
        if (!form.classList.contains("act")) return;
        event.preventDefault();
        const snapshot = copied(form);
        const { confirm, yes: label } = form.dataset;
        const danger = form.hasAttribute("data-danger");
        if (confirm && !(await confirmed(fill(confirm, snapshot), { label, danger, command: command(snapshot) }))) return;
        await act(snapshot);
    });

    document.addEventListener("click", async (event) => {
        const button = event.target.closest("button[data-bulk]");
        if (!button) return;
        const forms = [...document.querySelectorAll(`form[data-bulk="${button.dataset.bulk}"]`)].map(copied);
        const question = button.dataset.confirm.replace("{count}", String(forms.length));
        if (!(await confirmed(question, { label: button.textContent }))) return;
        let done = 0;
        for (const form of forms) {
            await act(form);
            done += 1;
            button.textContent = `${done} of ${forms.length}`;
        }
    });
})();
