// Keeps the page current. The server sends the inner HTML when it changes; this script applies the differences, so that
// typed text, open elements and the focus are kept.

(() => {
    "use strict";

    const page = document.getElementById("page");
    // A page that does not exist has no stream: nothing updates it.
    if (!page.dataset.stream) return;
    const connection = document.getElementById("connection");

    // Two elements correspond if they have the same tag and the same key (data-key or id, if any).
    const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "");
    const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
    // Attributes that the user controls.
    const USER_ATTRIBUTES = new Set(["open"]);

    function mergeAttributes(old, wanted) {
        for (const { name } of [...old.attributes]) {
            if (!wanted.hasAttribute(name) && !USER_ATTRIBUTES.has(name)) old.removeAttribute(name);
        }
        for (const { name, value } of wanted.attributes) {
            if (old.getAttribute(name) !== value && !USER_ATTRIBUTES.has(name)) old.setAttribute(name, value);
        }
    }

    function merge(old, wanted) {
        if (old.nodeType !== Node.ELEMENT_NODE) {
            if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
            return;
        }
        // Another script manages this element, including its attributes.
        if (old.hasAttribute("data-keep")) return;
        mergeAttributes(old, wanted);
        mergeChildren(old, wanted);
    }

    function mergeChildren(old, wanted) {
        let at = old.firstChild;
        for (const child of [...wanted.childNodes]) {
            let found = at;
            while (found && !same(found, child)) found = found.nextSibling;
            // A node without a key matches only the next element: a later one is a different element. Text nodes in
            // between may be removed.
            if (found && !keyOf(child)) {
                let between = at;
                while (between !== found && between.nodeType !== Node.ELEMENT_NODE) between = between.nextSibling;
                if (between !== found) {
                    found = null;
                } else if (child.nodeType === Node.ELEMENT_NODE) {
                    while (at !== found) {
                        const next = at.nextSibling;
                        at.remove();
                        at = next;
                    }
                }
            }
            if (!found) {
                old.insertBefore(child, at);
                continue;
            }
            if (found !== at) {
                old.insertBefore(found, at);
            } else {
                at = at.nextSibling;
            }
            merge(found, child);
        }
        while (at) {
            const next = at.nextSibling;
            at.remove();
            at = next;
        }
    }

    function show(html) {
        // DOMParser neither runs scripts nor loads resources; the server has escaped all values.
        const wanted = new DOMParser().parseFromString(`<main>${html}</main>`, "text/html").querySelector("main");
        mergeChildren(page, wanted);
        document.dispatchEvent(new CustomEvent("page-shown"));
    }

    let source = null;
    let shown = 0;
    // When the server last confirmed that the page is current.
    let confirmed = performance.now();
    let lost = "";

    // The age of the data after which it is shown as late, and after which a banner says so.
    const LATE_MS = 3000;
    const STALE_MS = 8000;
    const age = document.getElementById("age");
    const stale = document.getElementById("stale");

    function put(element, text) {
        if (element.textContent !== text) element.textContent = text;
    }

    function showAge() {
        if (document.hidden) return;
        const ms = performance.now() - confirmed;
        const seconds = Math.floor(ms / 1000);
        const late = ms > LATE_MS;
        connection.dataset.state = lost ? "lost" : late ? "late" : shown ? "live" : "";
        put(connection, lost || (late ? "delayed" : shown ? "live" : "connecting"));
        put(age, shown ? `updated ${seconds < 1 ? "now" : `${seconds} s ago`}` : "");
        stale.hidden = ms < STALE_MS;
        if (!stale.hidden) put(stale, "This page is not up to date: the pacemaker sends no data. Everything below is old.");
    }

    function confirm() {
        confirmed = performance.now();
        lost = "";
        showAge();
    }

    function open() {
        source = new EventSource(page.dataset.stream);
        source.addEventListener("page", (event) => {
            show(JSON.parse(event.data));
            shown += 1;
            // Browser tests read this to know that the page is current.
            page.dataset.shown = String(shown);
            confirm();
        });
        source.addEventListener("beat", confirm);
        source.addEventListener("charts", (event) => window.signalboxCharts(JSON.parse(event.data)));
        source.addEventListener("problems", (event) => {
            const [count, severity] = event.data.split(" ");
            const badge = document.getElementById("problem-count");
            badge.hidden = count === "0";
            badge.className = `count ${severity}`;
            put(badge, count);
            document.title = document.title.replace(/^(\(\d+\) )?/, count === "0" ? "" : `(${count}) `);
        });
        source.addEventListener("error", () => {
            const closed = source.readyState === EventSource.CLOSED;
            lost = closed ? "disconnected: reload the page" : "connection lost, reconnecting";
            showAge();
        });
    }

    setInterval(showAge, 500);

    function close() {
        if (source) source.close();
        source = null;
    }

    // A hidden page closes its stream, so the server reads nothing for it.
    document.addEventListener("visibilitychange", () => {
        close();
        if (document.hidden) return;
        confirmed = performance.now();
        open();
    });
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", (event) => {
        if (event.persisted && !source) open();
    });
    // On a small screen the navigation scrolls sideways.
    const current = document.querySelector(".side [aria-current]");
    const reveal = () => {
        if (current) current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.offsetLeft - 16;
    };
    reveal();
    window.addEventListener("resize", reveal);
    if (!document.hidden) open();
})();
