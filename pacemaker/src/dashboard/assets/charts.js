// Charts, drawn by uPlot. The server sends the newest points; older points are kept here.

(() => {
    "use strict";

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

    // The new points replace all old points from the first new one on. Points before the range are dropped.
    function joined(old, chart) {
        const fresh = [chart.x, ...chart.lines.map((line) => line.y)];
        if (!old || old.length !== fresh.length || !chart.x.length) return fresh;
        const first = old[0].findIndex((x) => x >= chart.from);
        const end = old[0].findIndex((x) => x >= chart.x[0]);
        const kept = (column) => (first < 0 ? [] : column.slice(first, end < 0 ? undefined : end));
        return fresh.map((column, index) => [...kept(old[index]), ...column]);
    }

    const value = (unit) => (_, number) => {
        if (number === null || number === undefined) return "–";
        const digits = number >= 100 || Number.isInteger(number) ? 0 : 1;
        return `${number.toLocaleString("en", { maximumFractionDigits: digits })} ${unit}`.trimEnd();
    };

    // Axis labels have little space.
    const short = (number) => number.toLocaleString("en", { notation: "compact" });

    const clock = (x) => new Date(x * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    const day = (x) => new Date(x * 1000).toLocaleDateString([], { day: "numeric", month: "short" });
    const DAY = 86400;
    // In a range of days a time alone would be ambiguous.
    const moments = (plot, splits) => {
        const long = plot.scales.x.max - plot.scales.x.min > DAY;
        return splits.map((x) => (long ? day(x) : clock(x)));
    };

    // With seconds, as the legend shows it.
    const moment = (chart) => (x) => `${chart.to - chart.from > DAY ? `${day(x)} ` : ""}${new Date(x * 1000).toLocaleTimeString([], { hourCycle: "h23" })}`;

    // A vertical line for each change, below the lines of the chart.
    const marks = (plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.strokeStyle = color("ink");
        ctx.globalAlpha = 0.55;
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
        for (const { x } of plot.marks ?? []) {
            const at = Math.round(plot.valToPos(x, "x", true));
            if (at < bbox.left || at > bbox.left + bbox.width) continue;
            ctx.beginPath();
            ctx.moveTo(at, bbox.top);
            ctx.lineTo(at, bbox.top + bbox.height);
            ctx.stroke();
        }
        ctx.restore();
    };

    // Names the changes near the cursor.
    const NEAR_PIXELS = 6;
    const named = (plot) => {
        const near = (plot.marks ?? []).filter(({ x }) => Math.abs(plot.valToPos(x, "x") - plot.cursor.left) < NEAR_PIXELS);
        plot.over.title = near.map(({ text }) => text).join("\n");
    };

    // Unless the cursor is on a point, the legend shows the newest one.
    const newest = (plot) => {
        if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
    };

    // Between the powers of ten, a logarithmic axis has labels, but no lines.
    const power = (y) => Math.abs(Math.log10(y) - Math.round(Math.log10(y))) < 1e-6;
    const powers = (_, splits) => splits.map((y) => (y !== null && power(y) ? y : null));

    const linear = { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] };
    // Whole powers of ten, so that the axis has at least two labels.
    const logarithmic = {
        distr: 3,
        range: (_, low, high) => {
            const [from, to] = [Math.floor(Math.log10(low || 1)), Math.ceil(Math.log10(high || 10))];
            return [10 ** from, 10 ** Math.max(to, from + 1)];
        },
    };

    // A part that was selected with the mouse stays, until a double click shows the whole range again.
    let zoomed = false;
    const zoom = (plot) => {
        if (plot.select.width > 0) zoomed = true;
    };

    // The moment that the keyboard has selected, in all charts; otherwise the legends show the newest values.
    let selected = null;
    const follow = (plot) => {
        if (selected === null) return;
        const left = plot.valToPos(selected, "x");
        if (Math.abs(left - plot.cursor.left) > 0.5) plot.setCursor({ left, top: 0 }, true, false);
    };

    // Screen readers read the values at the cursor.
    const spoken = document.createElement("span");
    spoken.className = "hidden";
    spoken.setAttribute("role", "status");
    document.body.append(spoken);

    const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

    // Moves the cursor of all charts from point to point of the chart with the focus.
    function move(event) {
        const { data, chart } = [...charts.values()].find(({ element }) => element === event.currentTarget) ?? {};
        const [x, ...lines] = data ?? [[]];
        const step = STEPS[event.key];
        if (!x.length || (step === undefined && event.key !== "Escape")) return;
        event.preventDefault();
        if (step === undefined) {
            selected = null;
            charts.forEach(({ plot }) => plot.setCursor({ left: -10, top: -10 }, true, false));
            spoken.textContent = "";
            return;
        }
        const last = x.length - 1;
        const from = selected === null ? last + 1 : x.findLastIndex((at) => at <= selected);
        const place = Math.min(Math.max(from + step, 0), last);
        selected = x[place];
        charts.forEach(({ plot }) => follow(plot));
        const values = chart.lines.map(({ label }, line) => `${label} ${value(chart.unit)(null, lines[line][place])}`);
        spoken.textContent = `${moment(chart)(selected)}: ${values.join(", ")}`;
    }

    // Shows the whole range, also where there are no data: so all charts of the page show the same time.
    const whole = ({ plot, chart }) => plot.setScale("x", { min: chart.from, max: chart.to });

    function options(element, chart) {
        const [ink, edge] = [color("ink"), color("edge")];
        const axis = { stroke: ink, grid: { stroke: edge, width: 1 }, ticks: { stroke: edge, width: 1, size: 4 } };
        const vertical = chart.log ? { ...axis, grid: { ...axis.grid, filter: powers }, ticks: { ...axis.ticks, filter: powers } } : axis;
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
            // The last time of the axis needs space on the right.
            padding: [null, 18, null, null],
            // All charts of the page show the same moment.
            cursor: { y: false, sync: { key: "time" } },
            hooks: { drawAxes: [marks], draw: [follow, newest], setCursor: [newest, named], setSelect: [zoom] },
            axes: [{ ...axis, space: 70, size: 34, values: moments }, { ...vertical, size: 52, values: (_, splits) => splits.map((y) => (y === null ? "" : short(y))) }],
            scales: { x: { range: (_, low, high) => [low ?? 0, high ?? 1] }, y: chart.log ? logarithmic : linear },
            series: [{ value: (_, x) => (x ? moment(chart)(x) : "–") }, ...series],
        };
    }

    // A text alternative for screen readers.
    function describe(element, chart, data) {
        const last = chart.lines.map((line, index) => {
            const known = data[index + 1].filter((number) => number !== null);
            return `${line.label} ${value(chart.unit)(null, known.at(-1))}`;
        });
        element.setAttribute("role", "img");
        element.tabIndex = 0;
        element.setAttribute("aria-label", last.join(", "));
    }

    function draw(chart) {
        const element = document.getElementById(`chart-${chart.id}`);
        if (!element) return;
        const before = charts.get(chart.id);
        const data = joined(before && before.data, chart);
        const names = chart.lines.map((line) => line.label).join("\n");
        let plot = before && before.element === element && before.names === names ? before.plot : null;
        if (!plot) {
            element.replaceChildren();
            element.addEventListener("keydown", move);
            plot = new uPlot(options(element, chart), data, element);
            plot.over.addEventListener("dblclick", () => {
                zoomed = false;
                charts.forEach(whole);
            });
        }
        element.toggleAttribute("data-empty", !data.slice(1).some((line) => line.some((y) => y !== null)));
        plot.marks = chart.marks;
        plot.setData(data, false);
        const drawn = { element, names, plot, data, chart };
        charts.set(chart.id, drawn);
        if (zoomed) plot.redraw();
        else whole(drawn);
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
