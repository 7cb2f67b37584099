// Forms that send a request to the API:
//   data-method, data-path   method and path of the request
//   data-base                initial body as JSON; the fields of the form are added to it
//   data-without             a field to remove from the initial body
//   data-confirm             the question to confirm before the request
//   data-done                the notice after success
// A field's data-json is the type of its value: "number", "share" (one entry of `shares`), "range" (minutes until now),
// or text if absent.

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
    window.signalboxActions = { csrf, notify, confirmed };

    document.addEventListener("submit", async (event) => {
        const form = event.target;
        if (!form.classList.contains("act")) return;
        event.preventDefault();
        // A copy: the page may change while the dialog is open, and the request must match the confirmed question.
        const snapshot = form.cloneNode(true);
        [...form.elements].forEach((field, index) => (snapshot.elements[index].value = field.value));
        if (form.dataset.confirm && !(await confirmed(form.dataset.confirm))) return;
        await act(snapshot);
    });
})();
