// Keeps the page as it is now: the server sends its inner part anew when it changed, and this puts the differences in
// place. What a person typed, opened or has the focus on stays as it is.

(() => {
    "use strict";

    const page = document.getElementById("page");
    const connection = document.getElementById("connection");

    // Elements that are the same thing have the same tag and, if they have one, the same key.
    const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "");
    const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
    // What the person before the screen decides.
    const theirs = new Set(["open"]);

    function mergeAttributes(old, wanted) {
        for (const { name } of [...old.attributes]) {
            if (!wanted.hasAttribute(name) && !theirs.has(name)) old.removeAttribute(name);
        }
        for (const { name, value } of wanted.attributes) {
            if (old.getAttribute(name) !== value && !theirs.has(name)) old.setAttribute(name, value);
        }
    }

    function merge(old, wanted) {
        if (old.nodeType !== Node.ELEMENT_NODE) {
            if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
            return;
        }
        // Drawn or filled by another script; what it says of itself to others is that script's business, too.
        if (old.hasAttribute("data-keep")) return;
        mergeAttributes(old, wanted);
        mergeChildren(old, wanted);
    }

    function mergeChildren(old, wanted) {
        let at = old.firstChild;
        for (const child of [...wanted.childNodes]) {
            let found = at;
            while (found && !same(found, child)) found = found.nextSibling;
            // Something without a key is only looked for where it should be: what comes later is something else. Text
            // in between is nothing to lose.
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
        // Parsed apart from the document, so nothing in it is run or fetched; the server has escaped what it shows.
        const wanted = new DOMParser().parseFromString(`<main>${html}</main>`, "text/html").querySelector("main");
        mergeChildren(page, wanted);
        document.dispatchEvent(new CustomEvent("page-shown"));
    }

    let source = null;
    let shown = 0;

    function say(text, lost) {
        connection.textContent = text;
        connection.classList.toggle("lost", lost);
    }

    function open() {
        source = new EventSource(page.dataset.stream);
        source.addEventListener("page", (event) => {
            show(JSON.parse(event.data));
            shown += 1;
            // For tests, which have to know that the page is what the server says now.
            page.dataset.shown = String(shown);
            say("live", false);
        });
        source.addEventListener("charts", (event) => window.signalboxCharts(JSON.parse(event.data)));
        source.addEventListener("error", () => {
            const over = source.readyState === EventSource.CLOSED;
            say(over ? "not live any more: load the page again" : "connection lost, trying again", true);
        });
    }

    function close() {
        if (source) source.close();
        source = null;
    }

    // Nobody looks: nothing is read on the server.
    document.addEventListener("visibilitychange", () => {
        close();
        if (!document.hidden) open();
    });
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", (event) => {
        if (event.persisted && !source) open();
    });
    if (!document.hidden) open();
})();
