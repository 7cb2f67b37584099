// The live tail of events: the event stream of the API, with the filter of the form.

(() => {
    "use strict";

    const MAX_LINES = 200;
    const filter = document.getElementById("tail-filter");
    if (!filter) return;
    const list = document.getElementById("tail-list");
    const state = document.getElementById("tail-state");
    const pause = document.getElementById("tail-pause");
    let source = null;
    let paused = false;
    let count = 0;

    function line(className, ...parts) {
        const item = document.createElement("li");
        item.className = className;
        item.append(...parts);
        list.prepend(item);
        while (list.children.length > MAX_LINES) list.lastElementChild.remove();
    }

    function code(text) {
        const element = document.createElement("code");
        element.textContent = text;
        return element;
    }

    function show(event) {
        const object = document.createElement("a");
        object.href = `/dashboard/objects?name=${encodeURIComponent(event.object)}`;
        object.textContent = event.object;
        const what = `${event.tenant}:${event.type}:${event.topic}`;
        const number = document.createElement("a");
        number.href = `/dashboard/event?name=${event.id}`;
        number.textContent = event.id;
        const time = document.createElement("span");
        time.className = "when";
        time.textContent = new Date(event.timestamp || Date.now()).toLocaleTimeString([], { hourCycle: "h23" });
        line("event", time, number, code(what), object, code(event.data === undefined ? "" : JSON.stringify(event.data).slice(0, 300)));
        count += 1;
        state.textContent = `${count} event${count === 1 ? "" : "s"} since the stream was opened.`;
    }

    // An EventSource does not report why it was rejected, so the API is asked once more.
    async function reject(query) {
        const ended = new AbortController();
        try {
            const answer = await fetch(`/events?${query}`, { signal: ended.signal });
            const problem = answer.ok ? {} : await answer.json();
            state.textContent = problem.detail ? `Stream rejected: ${problem.detail}` : "Stream ended. Filter again to open it.";
        } catch {
            state.textContent = "No response from the pacemaker.";
        }
        ended.abort();
    }

    function open() {
        close();
        if (paused || document.hidden) return;
        const query = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
        source = new EventSource(`/events?${query}`);
        source.addEventListener("open", () => {
            filter.dataset.open = "yes";
            if (!count) state.textContent = "Waiting for events.";
        });
        source.addEventListener("message", (message) => show(JSON.parse(message.data)));
        source.addEventListener("gap", () => line("gap", "Gap: some events are no longer retained."));
        source.addEventListener("error", () => {
            const closed = source.readyState === EventSource.CLOSED;
            if (closed) reject(query);
            else state.textContent = "Connection lost. Reconnecting; the stream resumes where it stopped.";
        });
    }

    function close() {
        delete filter.dataset.open;
        if (source) source.close();
        source = null;
    }

    filter.addEventListener("submit", (event) => {
        event.preventDefault();
        list.replaceChildren();
        count = 0;
        open();
    });
    pause.addEventListener("click", () => {
        paused = !paused;
        pause.setAttribute("aria-pressed", String(paused));
        pause.textContent = paused ? "Resume" : "Pause";
        if (paused) state.textContent = "Paused.";
        open();
    });
    document.addEventListener("visibilitychange", open);
    window.addEventListener("pagehide", close);
    open();
})();
