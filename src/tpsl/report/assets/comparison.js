"use strict";
// A few runs beside each other: their numbers, what their jobs differ in, and their curves. One run alone is watched.
const tpslComparison = (() => {
  const { make, byId, table } = tpslDom;
  const { count, measured, MISSING } = tpslFigures;
  const SCRIPTS = ["plotly-basic.min.js", "charts.js"];
  const views = new Map();  // by the run's name: its version, and all that is known of it
  const state = { names: [], metric: null, chosen: 0 };
  let charts = null, loading = null;

  const loaded = (name) => new Promise((resolve, reject) => {
    document.head.append(make("script", { src: `assets/${name}`, onload: resolve, onerror: reject }));
  });
  // The scripts that draw charts are large: they come when the first comparison is opened.
  const chartsReady = () => loading ??= SCRIPTS.reduce((before, name) => before.then(() => loaded(name)), Promise.resolve()).then(() => {
    charts = tpslCharts({ revision: () => `${state.names.join("\n")} ${state.metric}`, pick: (run) => { state.chosen = run; charts.redraw(); }, isLong: () => false });
  });
  const viewOf = async (run) => {
    const held = views.get(run.name);
    if (held?.version === run.version) return held.view;
    const view = await (await fetch(`views/${encodeURIComponent(run.name)}`, { cache: "no-store" })).json();
    views.set(run.name, { version: run.version, view });
    return view;
  };

  const beside = (caption, rows, runs) => table(caption, ["Run", ...runs.map((run) => run.name)], rows.map(([name, ...texts]) => [{ text: name }, ...texts.map((text) => ({ text }))]), { style: "wide beside" });
  const numbers = (runs, words) => {
    const { duration, stateOf } = words;
    const all = [
      ["Data set", (run) => run.data],
      ["State", stateOf],
      ["Mechanism", (run) => run.mechanism],
      ["ε of the run", (run) => run.epsilon_text],
      ["Total ε", (run) => run.total_epsilon_text + (run.total_delta_text ? `, δ = ${run.total_delta_text}` : "")],
      ["Private", (run) => run.privacy],
      ["Test AUC", (run) => measured(run.test_auc, run.test_auc_low, run.test_auc_high)],
      ["Attack AUC", (run) => measured(run.attack_auc, run.attack_auc_low, run.attack_auc_high)],
      ["Strongest attack", (run) => run.attack_text ?? MISSING],
      ["Bound", (run) => run.bound_text],
      ["Epochs", (run) => count(run.epochs)],
      ["Records/s", (run) => count(run.samples_per_second)],
      ["Duration", (run) => duration(run.seconds)],
      ["Trained by", (run) => run.program ?? MISSING],
    ];
    return all.map(([name, text]) => [name, ...runs.map(text)]).filter(([, ...texts]) => texts.some((text) => text !== MISSING));
  };
  const differences = (runs, words) => [...new Set(runs.flatMap((run) => Object.keys(run.job)))].sort()
    .map((key) => [key, ...runs.map((run) => (run.job[key] === undefined ? MISSING : words.jobText(run.job[key])))])
    .filter(([, ...texts]) => new Set(texts).size > 1);

  const heading = (runs, words) => {
    const one = runs.length === 1;
    return make("div", { class: "comparison-head" },
      make("button", { type: "button", id: "leave", onclick: words.leave }, "‹ All runs"),
      make("h1", { tabindex: "-1" }, one ? runs[0].name : `${runs.length} runs compared`),
      make("p", { class: "small" }, ...runs.flatMap((run, i) => [i ? " · " : one ? "" : "Reports: ", make("a", { href: `runs/${encodeURIComponent(run.name)}` }, one ? "Report of this run" : run.name)])),
      new Set(runs.map((run) => run.data_group)).size > 1 ? make("p", { class: "intro" }, "These runs are on different data: their AUCs cannot be compared.") : null);
  };

  const drawCurves = async (runs, place, label) => {
    const names = state.names;
    const [found] = await Promise.all([Promise.all(runs.map(viewOf)), chartsReady()]);
    if (names !== state.names) return;  // another comparison was opened meanwhile
    const metrics = tpslFigures.metricsOf(found);
    if (!metrics.includes(state.metric)) state.metric = metrics[0];
    byId("curves").hidden = !label && !metrics.length;  // they are the label party's
    byId("no-curves").hidden = metrics.length > 0;
    if (!metrics.length) return;
    const tools = byId("metric") ? null : make("span", {}, make("label", { for: "metric", class: "unseen" }, "Metric"),
      make("select", { id: "metric", onchange: (event) => { state.metric = event.target.value; charts.redraw(); } }));
    charts.chart(place, "curves", () => tpslFigures.metricName(state.metric), (look) => tpslFigures.curves(found, found[state.chosen] ?? found[0], state.metric, look), { tools });
    byId("metric").replaceChildren(...metrics.map((key) => make("option", { value: key, selected: key === state.metric }, tpslFigures.metricName(key))));
    charts.redraw();
  };

  const part = (id, title, ...children) => make("section", { id }, make("h2", {}, title), ...children);
  const show = (runs, words) => {
    const place = byId("comparison"), names = runs.map((run) => run.name);
    if (names.join("\n") !== state.names.join("\n")) {
      Object.assign(state, { names, chosen: 0 });
      place.replaceChildren(heading(runs, words), make("div", { class: "going-on" }), make("div", { class: "jobs" }),
        part("curves", "Curves", make("p", { class: "intro", id: "no-curves", hidden: true }, "No run has a curve yet: the first point comes after the first epoch."), make("div", { "data-part": "curves" })), make("div", { class: "numbers" }));
      place.querySelector("h1").focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    const cards = runs.map(words.card).filter(Boolean);
    place.querySelector(".going-on").replaceChildren(...cards);
    place.querySelector(".numbers").replaceChildren(part("side-by-side", "Numbers", beside("Numbers", numbers(runs, words), runs)));
    const differing = differences(runs, words);
    place.querySelector(".jobs").replaceChildren(...(runs.length < 2 ? [] : [part("differences", "What differs in the jobs", differing.length
      ? beside("Differences", differing, runs) : make("p", { class: "intro" }, "Nothing: these runs have the same job."))]));
    drawCurves(runs, place.querySelector("[data-part=curves]"), words.label).catch(() => {});  // the run, or the service, is gone
  };

  return { show, redraw: () => charts?.redraw() };
})();
