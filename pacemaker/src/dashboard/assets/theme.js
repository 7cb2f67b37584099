// The color theme: that of the system, or the one that was chosen in this browser. Runs before the page is drawn.

(() => {
    "use strict";

    const THEMES = ["system", "light", "dark"];
    const root = document.documentElement;

    function stored() {
        try {
            const theme = localStorage.getItem("theme");
            return THEMES.includes(theme) ? theme : "system";
        } catch {
            return "system";
        }
    }

    function apply(theme) {
        if (theme === "system") delete root.dataset.theme;
        else root.dataset.theme = theme;
    }

    apply(stored());
    document.addEventListener("DOMContentLoaded", () => {
        const button = document.getElementById("theme");
        if (!button) return;
        const show = () => (button.textContent = `Theme: ${stored()}`);
        button.hidden = false;
        show();
        button.addEventListener("click", () => {
            const theme = THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length];
            try {
                localStorage.setItem("theme", theme);
            } catch {
                // Storage is disabled: the theme lasts until the page is left.
            }
            apply(theme);
            button.textContent = `Theme: ${theme}`;
            document.dispatchEvent(new CustomEvent("theme-changed"));
        });
    });
})();
