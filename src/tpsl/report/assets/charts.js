"use strict";
// Charts on a page: drawn with Plotly, each with a table of the same numbers, keys for the keyboard and a zoom that stays.
// `revision` names what a zoom belongs to, `pick` is told which run was clicked, `isLong` says whether charts out of
// sight can wait.
const tpslCharts = ({ revision, pick, isLong }) => {
  const { make, byId, table } = tpslDom;
  const root = document.documentElement;
  const charts = new Map(), asTables = new Set();
  let printing = false, themeBefore;

  const look = (width) => {
    const probe = document.body.appendChild(make("span", { hidden: true }));
    const colour = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const found = {
      ink: colour("ink"), muted: colour("muted"), rule: colour("rule"), paper: colour("paper"), behind: colour("behind"),
      accent: colour("accent"), utility: colour("utility"), attacks: ["attack", "attack-2", "attack-3"].map(colour),
      limit: colour("limit"), limitSoft: colour("limit-soft"), runs: [1, 2, 3, 4, 5, 6].map((number) => colour(`run-${number}`)),
      font: getComputedStyle(document.body).fontFamily, narrow: width < 520, dense: printing,
    };
    probe.remove();
    return found;
  };

  // The buttons are named one by one: among the default ones is one that uploads the chart to a cloud.
  const CONFIG = { displaylogo: false, plotlyServerURL: "", responsive: false, scrollZoom: false, doubleClick: "reset", showTips: false,
    modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };

  const reach = (plot) => plot.data.flatMap((trace, curve) => (trace.hoverinfo === "skip" ? [] : trace.x.map((x, point) => [curve, point])
    .filter(([, point]) => trace.x[point] !== null && trace.y[point] !== null)));
  const spoken = (text) => {
    const reader = make("textarea");
    reader.innerHTML = String(text).replaceAll("<br>", ", ");  // a textarea reads entities and runs nothing
    return reader.value;
  };
  const zoom = (plot, factor) => {
    const ranges = {};
    for (const name of ["xaxis", "yaxis"]) {
      const axis = plot._fullLayout[name];
      if (axis.fixedrange) continue;
      const [low, high] = axis.range.map(Number), middle = (low + high) / 2, half = ((high - low) / 2) * factor;
      ranges[name] = [middle - half, middle + half];
    }
    plot.zoomed = { revision: plot.layout.uirevision, ranges };
    Plotly.relayout(plot, Object.fromEntries(Object.entries(ranges).map(([name, range]) => [`${name}.range`, range])));
  };
  const showAll = (plot) => {
    plot.zoomed = null;
    const changes = {};
    for (const name of ["xaxis", "yaxis"]) {
      const given = plot.layoutAsGiven[name].range;
      changes[given ? `${name}.range` : `${name}.autorange`] = given ?? true;
    }
    Plotly.relayout(plot, changes);
  };
  const onKey = (event, plot) => {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const zooms = { "+": 0.7, "=": 0.7, "-": 1 / 0.7 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) {
      const points = reach(plot);
      plot.at = ((plot.at ?? (moves[event.key] > 0 ? -1 : 0)) + moves[event.key] + points.length) % points.length;
      const [curveNumber, pointNumber] = points[plot.at];
      Plotly.Fx.hover(plot, [{ curveNumber, pointNumber }]);
      byId("announce").textContent = spoken(plot.data[curveNumber].text?.[pointNumber] ?? "");
    } else if (event.key in zooms) zoom(plot, zooms[event.key]);
    else if (event.key === "0") showAll(plot);
    else if (event.key === "Escape") Plotly.Fx.unhover(plot);
    else return;
    event.preventDefault();
  };

  // Give a chart its place on the page; `redraw` draws all of them when every place has its width.
  const chart = (place, id, title, draw, { tools = null } = {}) => {
    let held = charts.get(id);
    if (!held || !held.figure.isConnected) {
      const plot = make("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart" });
      const summary = make("p"), heading = make("h3"), toggle = make("button", { type: "button", "aria-pressed": "false" }, "Table");
      const bar = make("div", { class: "tools" }, tools, toggle);
      const figure = make("figure", { id: `chart-${id}` }, make("figcaption", {}, make("div", {}, heading, summary), bar), plot);
      held = { figure, plot, summary, heading, toggle, rows: null };
      charts.set(id, held);
      toggle.addEventListener("click", () => {
        asTables.has(id) ? asTables.delete(id) : asTables.add(id);
        held.update();
      });
      plot.addEventListener("keydown", (event) => onKey(event, plot));
      place.append(figure);
    }
    held.update = () => {
      const part = place.closest(".pair") ? "half" : "whole";
      const width = printing ? PRINTED[part] : held.figure.clientWidth || place.clientWidth || 600;
      const drawing = draw(look(width));
      held.figure.hidden = !drawing;
      if (!drawing) return;
      const asTable = asTables.has(id), isSentence = !drawing.traces;  // one point says less than a sentence
      held.heading.textContent = title();
      held.summary.textContent = drawing.summary;
      held.toggle.hidden = isSentence;
      held.rows?.remove();
      held.plot.hidden = isSentence;
      if (isSentence) return;
      held.plot.setAttribute("aria-label", `Chart: ${title()}. ${drawing.summary} Arrow keys go from point to point; the button before it shows a table.`);
      held.toggle.setAttribute("aria-pressed", String(asTable));
      held.toggle.setAttribute("aria-label", `${title()} as a table`);
      held.rows = asTable ? table(title(), drawing.columns, drawing.rows) : null;
      if (held.rows) held.figure.append(held.rows);
      held.plot.hidden = asTable;
      if (asTable) return;
      held.plot.layoutAsGiven = structuredClone({ xaxis: drawing.layout.xaxis, yaxis: drawing.layout.yaxis });
      held.plot.at = undefined;
      // New data and another theme leave the reader's zoom as it is; another run does not.
      const uirevision = revision(), zoomed = held.plot.zoomed;
      if (zoomed?.revision === uirevision) for (const [name, range] of Object.entries(zoomed.ranges)) drawing.layout[name].range = range;
      const isLow = printing && !drawing.layout.yaxis.fixedrange;  // rows keep their height
      const height = isLow ? Math.min(PRINTED.height[part], drawing.layout.height) : drawing.layout.height;
      Plotly.react(held.plot, drawing.traces, { ...drawing.layout, uirevision, width, height, autosize: false }, CONFIG);
      if (!held.clickable) {
        held.clickable = true;
        held.plot.on("plotly_click", (event) => {
          const run = event.points[0]?.customdata;
          if (Number.isInteger(run)) pick(run);
        });
      }
    };
  };
  const PRINTED = { whole: 680, half: 325, height: { whole: 280, half: 540 } };  // CSS pixels: what an A4 page with its margins has

  // Of a long page, charts that are out of sight are drawn one after the other when the browser has time.
  const soon = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 0));
  let waitingCharts = [];
  const drawOneWaiting = () => {
    waitingCharts.shift()?.update();
    if (waitingCharts.length) soon(drawOneWaiting);
  };
  const redraw = () => {
    const all = [...charts.values()].filter((held) => held.figure.isConnected && held.update);
    const inSight = (held) => held.figure.getBoundingClientRect().top < 2 * innerHeight;
    const later = printing || !isLong() ? [] : all.filter((held) => !inSight(held));
    for (const held of all) if (!later.includes(held)) held.update();
    const idle = !waitingCharts.length;
    waitingCharts = later;
    if (idle && later.length) soon(drawOneWaiting);
  };

  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (innerWidth !== width && !printing) { width = innerWidth; redraw(); } }, 120);
  });
  // On paper the charts are as wide as the paper and as light as the rest.
  const forPrint = (now) => {
    printing = now;
    if (printing) { themeBefore = root.dataset.theme; root.dataset.theme = "light"; }
    else if (themeBefore === undefined) delete root.dataset.theme;
    else root.dataset.theme = themeBefore;
    redraw();
    if (printing) redraw();  // Margins settle in the second drawing; the browser does not wait for them.
  };
  addEventListener("beforeprint", () => forPrint(true));
  addEventListener("afterprint", () => forPrint(false));

  return { look, chart, redraw, update: (id) => charts.get(id).update() };
};
