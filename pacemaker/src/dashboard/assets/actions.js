// Buttons that change something. A form says which request of the API it is:
//   data-method, data-path   the request
//   data-base                JSON that the body begins with; fields of the form are put into it
//   data-without             a field that is taken out of it
//   data-confirm             what is asked before, data-done what is said after
// A field says with data-json how its value is written: as "number", as one of the "shares", as a "range" of minutes up
// to now, or else as text.

(() => {
    "use strict";

    const csrf = document.querySelector('meta[name="csrf"]').content;
    const dialog = document.getElementById("confirm");
    const told = document.getElementById("told");

    // Notices lie over the page, so only the newest are shown, and a click takes one away.
    const SHOWN = 2;

    function tell(text, bad) {
        while (told.children.length >= SHOWN) told.firstElementChild.remove();
        const line = document.createElement("p");
        line.textContent = text;
        line.className = bad ? "bad" : "good";
        line.addEventListener("click", () => line.remove());
        told.append(line);
        setTimeout(() => line.remove(), bad ? 15000 : 5000);
    }

    function confirmed(text) {
        document.getElementById("confirm-text").textContent = text;
        dialog.returnValue = "";
        dialog.showModal();
        document.getElementById("confirm-yes").focus();
        return new Promise((resolve) => {
            dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
        });
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
        const { method, path, done } = form.dataset;
        const headers = { "X-Signalbox-CSRF": csrf };
        const body = bodyOf(form);
        if (body !== undefined) headers["Content-Type"] = "application/json";
        let answer;
        try {
            answer = await fetch(path, { method, headers, body });
        } catch {
            tell("The pacemaker does not answer. What you asked for may have happened all the same.", true);
            return;
        }
        if (answer.ok) {
            const result = await answer.json().catch(() => ({}));
            if (result.delivered === false) {
                tell(`It was not delivered: ${result.why}`, true);
                return;
            }
            tell(done || "Done.", false);
            return;
        }
        const problem = await answer.json().catch(() => ({}));
        tell(problem.detail || `It was refused (${answer.status}).`, true);
    }

    // For scripts whose requests have answers to be shown.
    window.signalboxActions = { csrf, tell, confirmed };

    document.addEventListener("submit", async (event) => {
        const form = event.target;
        if (!form.classList.contains("act")) return;
        event.preventDefault();
        // What was asked about is what is done, also when the page changes behind the question.
        const asked = form.cloneNode(true);
        [...form.elements].forEach((field, index) => (asked.elements[index].value = field.value));
        if (form.dataset.confirm && !(await confirmed(form.dataset.confirm))) return;
        await act(asked);
    });
})();
