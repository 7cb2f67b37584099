// Charts, drawn by uPlot. The server sends the newest points; older points are kept here.

(() => {
    "use strict";

    const MAX_POINTS = 1800;
    const HEIGHT = 180;
    const charts = new Map();

    // A variable depends on the theme, so an element has to resolve it.
    const probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
    const color = (name) => {
        const variable = { plain: "--link", good: "--good", warn: "--warn", bad: "--bad", other: "--other", ink: "--faint", edge: "--edge" }[name];
        probe.style.color = `var(${variable})`;
        return getComputedStyle(probe).color;
    };
    // The same color, nearly transparent.
    const pale = (name) => color(name).replace("rgb(", "rgba(").replace(")", ", .12)");

    // The new points replace all old points from the first new one on.
    function joined(old, chart) {
        const fresh = [chart.x, ...chart.lines.map((line) => line.y)];
        if (!old || old.length !== fresh.length || !chart.x.length) return fresh;
        const kept = old[0].filter((x) => x < chart.x[0]).length;
        return fresh.map((column, index) => [...old[index].slice(0, kept), ...column].slice(-MAX_POINTS));
    }

    const value = (unit) => (_, number) => {
        if (number === null || number === undefined) return "–";
        const digits = number >= 100 || Number.isInteger(number) ? 0 : 1;
        return `${number.toLocaleString("en", { maximumFractionDigits: digits })} ${unit}`;
    };

    // Axis labels have little space.
    const short = (number) => number.toLocaleString("en", { notation: "compact" });

    const clock = (x) => new Date(x * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

    // Unless the cursor is on a point, the legend shows the newest one.
    const newest = (plot) => {
        if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
    };

    function options(element, chart) {
        const [ink, edge] = [color("ink"), color("edge")];
        const axis = { stroke: ink, grid: { stroke: edge, width: 1 }, ticks: { stroke: edge, width: 1 } };
        const series = chart.lines.map((line, place) => ({
            label: line.label,
            stroke: color(line.color),
            // The first line is the total or the main line, so only its area is filled.
            fill: place === 0 ? pale(line.color) : undefined,
            width: 1.5,
            // A single value is not visible as a line.
            points: { show: (plot, place) => plot.data[place].filter((y) => y !== null).length < 2, size: 5 },
            value: value(chart.unit),
        }));
        return {
            width: Math.max(element.clientWidth, 200),
            height: HEIGHT,
            // All charts of the page show the same moment.
            cursor: { y: false, sync: { key: "time" } },
            hooks: { draw: [newest], setCursor: [newest] },
            axes: [{ ...axis, space: 70, values: (_, splits) => splits.map(clock) }, { ...axis, size: 60, values: (_, splits) => splits.map(short) }],
            scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
            series: [{ value: (_, x) => (x ? new Date(x * 1000).toLocaleTimeString([], { hourCycle: "h23" }) : "–") }, ...series],
        };
    }

    // A text alternative for screen readers.
    function describe(element, chart, data) {
        const last = chart.lines.map((line, index) => {
            const known = data[index + 1].filter((number) => number !== null);
            return `${line.label} ${value(chart.unit)(null, known.at(-1))}`;
        });
        element.setAttribute("role", "img");
        element.setAttribute("aria-label", last.join(", "));
    }

    function draw(chart) {
        const element = document.getElementById(`chart-${chart.id}`);
        if (!element) return;
        const before = charts.get(chart.id);
        const data = joined(before && before.data, chart);
        const names = chart.lines.map((line) => line.label).join("\n");
        let plot = before && before.element === element && before.names === names ? before.plot : null;
        if (plot) {
            plot.setData(data);
        } else {
            element.replaceChildren();
            plot = new uPlot(options(element, chart), data, element);
        }
        charts.set(chart.id, { element, names, plot, data, chart });
        describe(element, chart, data);
    }

    window.signalboxCharts = (list) => list.forEach(draw);

    window.addEventListener("resize", () => {
        for (const { plot, element } of charts.values()) {
            plot.setSize({ width: Math.max(element.clientWidth, 200), height: HEIGHT });
        }
    });
    // The canvas has no styles: redraw it with the colors of the new theme.
    function redraw() {
        for (const [id, { chart, data, plot }] of [...charts]) {
            plot.destroy();
            charts.delete(id);
            draw({ ...chart, x: data[0], lines: chart.lines.map((line, index) => ({ ...line, y: data[index + 1] })) });
        }
    }

    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    document.addEventListener("theme-changed", redraw);
})();
