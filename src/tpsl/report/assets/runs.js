"use strict";
// The list of runs: sorted, filtered and grouped as the address says, and kept up to date.
(() => {
  const { make, byId } = tpslDom;
  const { auc, count, MISSING } = tpslFigures;
  const EVERY = 1000;  // milliseconds between two questions
  const QUIET = 60_000;  // milliseconds without a write after which a run is not called running
  const MOST_COMPARED = 12;
  const holder = byId("data");
  let version = holder.dataset.version, data = JSON.parse(holder.textContent);
  const selected = new Set();

  // ---- numbers and words
  const many = (number, one, several = `${one}s`) => `${count(number)} ${number === 1 ? one : several}`;
  const duration = (seconds) => {
    if (seconds === undefined || seconds === null) return MISSING;
    if (seconds < 59.5) return `${seconds < 9.95 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const moment = (time) => (time ? time.slice(0, 16).replace("T", " ") : MISSING);
  const isRunning = (run) => run.state !== "finished" && run.updated !== undefined && Date.now() - Date.parse(run.updated) < QUIET;
  const stateOf = (run) => (run.state === "finished" ? "finished" : isRunning(run) ? "running" : "unfinished");
  const share = (run) => (run.steps ? run.step / run.steps : run.of_epochs ? run.epochs / run.of_epochs : 0);
  const left = (run) => (run.seconds_left === undefined ? "" : `${run.may_stop_early ? "at most " : ""}${duration(run.seconds_left)} left`);
  const epochOf = (run) => `epoch ${count(Math.min(run.of_epochs, run.steps ? Math.floor((run.step * run.of_epochs) / run.steps) + 1 : run.epochs + 1))} of ${count(run.of_epochs)}`;
  const jobText = (value) => (Array.isArray(value) || typeof value === "object" ? JSON.stringify(value) : String(value));

  // ---- columns
  const bar = (run) => make("progress", { max: "1", value: String(share(run)), "aria-label": `${run.name}: ${Math.round(100 * share(run))} % done` });
  const stateCell = (run) => {
    const state = stateOf(run);
    if (state === "finished") return ["finished"];
    if (state === "unfinished") return ["unfinished", make("small", {}, epochOf(run))];
    return ["running", bar(run), make("small", {}, [epochOf(run), left(run)].filter(Boolean).join(", "))];
  };
  // From guessing to certain: the bound of this kind of attacker, and where the attack is.
  const attackCell = (run) => {
    const bound = make("small", {}, `bound ${run.bound_text}`);
    const place = (value) => `${Math.max(0, Math.min(100, 200 * (value - 0.5)))}%`;
    const scale = make("span", { class: "meter", "aria-hidden": "true" });
    if (run.bound !== undefined) scale.append(make("i", { class: "allowed", style: `width:${place(run.bound)}` }));
    if (run.attack_auc !== undefined) scale.append(make("i", { class: "point", style: `left:${place(run.attack_auc)}` }));
    return label ? [auc(run.attack_auc), scale, bound] : [scale, bound];
  };
  const interval = (low, high) => {
    const text = tpslFigures.interval(low, high);
    return text ? make("small", {}, text) : null;
  };
  const notPrivate = (run) => (run.private ? null : make("small", { class: "no" }, "not private"));
  const label = data.party === "label";  // a feature party sees no ledger: unless it is handed over, its total is the run's own ε
  const COLUMNS = [
    { key: "data", name: "Data set", value: (run) => run.data, shown: (run) => [run.data] },
    { key: "state", name: "State", value: stateOf, shown: stateCell },
    { key: "date", name: "Date (UTC)", value: (run) => run.updated, shown: (run) => [moment(run.updated)], down: true },
    { key: "epsilon", name: "ε of the run", number: true, value: (run) => run.epsilon ?? Infinity, shown: (run) => [run.epsilon_text, label ? null : notPrivate(run)] },
    { key: "total_epsilon", name: "Total ε", number: true, extra: !label, value: (run) => run.total_epsilon ?? Infinity,
      shown: (run) => [run.total_epsilon_text, run.total_delta_text ? make("small", {}, `δ = ${run.total_delta_text}`) : null, notPrivate(run)] },
    { key: "test_auc", name: "Test AUC", number: true, down: true, ofLabels: true, value: (run) => run.test_auc,
      shown: (run) => [make("span", { class: "utility" }, auc(run.test_auc)), interval(run.test_auc_low, run.test_auc_high), run.recommended ? make("small", { class: "best" }, "smallest ε as good as the best") : null] },
    { key: "attack_auc", name: label ? "Attack AUC" : "Bound on attacks", number: true, value: (run) => run.attack_auc ?? run.bound, shown: attackCell },
    { key: "duration", name: "Duration", number: true, value: (run) => run.seconds, shown: (run) => [duration(run.seconds)] },
    { key: "mechanism", name: "Mechanism", extra: true, value: (run) => run.mechanism, shown: (run) => [run.mechanism, make("small", {}, run.estimator)] },
    { key: "private", name: "Private", extra: true, value: (run) => run.privacy, shown: (run) => [run.privacy] },
    { key: "records", name: "Training records", extra: true, number: true, value: (run) => run.train_records, shown: (run) => [count(run.train_records)] },
    { key: "epochs", name: "Epochs", extra: true, number: true, value: (run) => run.epochs, shown: (run) => [count(run.epochs)] },
    { key: "speed", name: "Records/s", extra: true, number: true, down: true, value: (run) => run.samples_per_second, shown: (run) => [count(run.samples_per_second)] },
    { key: "starts_from", name: "Starts from", extra: true, value: (run) => run.starts_from, shown: (run) => [run.starts_from ?? MISSING] },
    { key: "audited_epsilon", name: "Audited ε ≥", extra: true, number: true, ofLabels: true, value: (run) => run.audited_epsilon, shown: (run) => [tpslFigures.atLeast(run.audited_epsilon)] },
  ].filter((column) => label || !column.ofLabels);
  const nameColumn = { key: "run", name: "Run", value: (run) => run.name };
  const jobColumn = (key) => ({ key, name: key, extra: true, ofJob: true, number: data.runs.some((run) => typeof run.job[key] === "number"),
    value: (run) => run.job[key], shown: (run) => [run.job[key] === undefined ? MISSING : jobText(run.job[key])] });
  const offered = () => [...COLUMNS, ...[...new Set(data.runs.flatMap((run) => Object.keys(run.job)))].sort().map(jobColumn)];

  // ---- what is looked at stands in the address
  const read = () => {
    const hash = new URLSearchParams(location.hash.slice(1));
    const names = hash.get("columns")?.split(",");
    return {
      query: hash.get("search") ?? "",
      sort: hash.get("sort") ?? "-date",
      columns: names ?? COLUMNS.filter((column) => !column.extra).map((column) => column.key),
      grouped: hash.get("group") !== "no",
      compared: hash.getAll("compare"),
    };
  };
  const write = (changes, { push = false } = {}) => {
    const hash = new URLSearchParams(location.hash.slice(1));
    for (const [key, value] of Object.entries(changes)) {
      hash.delete(key);
      for (const one of [value].flat()) if (one !== null && one !== "") hash.append(key, one);
    }
    history[push ? "pushState" : "replaceState"](null, "", `#${hash}`);
    show();
  };

  // ---- order
  const byGroup = (runs) => {
    const groups = new Map();
    for (const run of runs) groups.set(run.data_group, [...(groups.get(run.data_group) ?? []), run]);
    return [...groups.values()].sort((a, b) => a[0].data.localeCompare(b[0].data) || b.length - a.length);
  };
  const sorted = (runs, sort) => {
    const down = sort.startsWith("-"), key = sort.replace(/^-/, "");
    const column = [nameColumn, ...offered()].find((one) => one.key === key) ?? nameColumn;
    const collator = new Intl.Collator("en", { numeric: true });
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b)));
    const missing = (value) => value === undefined || value === null;
    return runs.map((run) => [column.value(run), run]).sort(([a, one], [b, other]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);  // whatever the order, what is unknown comes last
      return (a === b ? 0 : down ? compare(b, a) : compare(a, b)) || collator.compare(one.name, other.name);
    }).map(([, run]) => run);
  };

  // What is drawn anew leaves the keyboard where it was.
  const refocus = (name) => {
    if (name) [...document.querySelectorAll("[data-focus]")].find((element) => element.dataset.focus === name)?.focus({ preventScroll: true });
  };

  // ---- the table
  const rows = new Map();  // by the run's name: what it was made of, and the row
  const rowOf = (run, columns) => {
    const made = [run.version, run.updated, run.step, stateOf(run), run.recommended, ...columns.map((column) => column.key)].join(" ");
    if (rows.get(run.name)?.made !== made) {
      const box = make("input", { type: "checkbox", "aria-label": `Select ${run.name}`, "data-focus": `box ${run.name}`, onchange: (event) => {
        event.target.checked ? selected.add(run.name) : selected.delete(run.name);
        showSelection();
      } });
      const link = make("a", { href: `runs/${encodeURIComponent(run.name)}`, "data-focus": `link ${run.name}` }, run.name);
      const watch = !isRunning(run) ? null : make("button", { type: "button", class: "pick small", "data-focus": `watch ${run.name}`, "aria-label": `Watch ${run.name}`,
        onclick: () => write({ compare: [run.name] }, { push: true }) }, "watch");
      rows.set(run.name, { made, row: make("tr", { "data-run": run.name }, make("td", { class: "box" }, box), make("th", { scope: "row" }, link, watch),
        ...columns.map((column) => make("td", { class: column.number ? "number" : null, "data-field": column.key, "data-head": column.name }, make("span", {}, ...column.shown(run).filter((x) => x !== null))))) });
    }
    const { row } = rows.get(run.name);
    row.querySelector("input").checked = selected.has(run.name);
    row.classList.toggle("chosen", selected.has(run.name));
    return row;
  };
  const headOf = (columns, sort) => {
    const down = sort.startsWith("-"), key = sort.replace(/^-/, "");
    const head = (column) => {
      const current = column.key === key;
      const next = current ? (down ? column.key : `-${column.key}`) : column.down ? `-${column.key}` : column.key;
      return make("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": current ? (down ? "descending" : "ascending") : null },
        make("button", { type: "button", "data-focus": `sort ${column.key}`, onclick: () => write({ sort: next }) }, column.name, make("span", { "aria-hidden": "true" }, current ? (down ? " ↓" : " ↑") : "")));
    };
    return make("thead", {}, make("tr", {}, make("th", { class: "box" }, make("span", { class: "unseen" }, "Select")), ...[nameColumn, ...columns].map(head)));
  };
  const groupHead = (runs, all, width) => {
    const [first] = runs, top = all.find((run) => run.recommended), records = all.find((run) => run.train_records !== undefined)?.train_records;
    const facts = [records === undefined ? "" : `${count(records)} training records`, runs.length === all.length ? many(all.length, "run") : `${count(runs.length)} of ${many(all.length, "run")}`,
      top ? `smallest ε as good as the best: ${top.name}, test AUC ${auc(top.test_auc)} at total ε = ${top.total_epsilon_text}` : ""].filter(Boolean);
    return make("tr", { class: "data-set" }, make("th", { scope: "rowgroup", colspan: String(width) }, first.data, make("small", {}, facts.join(" · "))));
  };
  const table = (view) => {
    const all = byGroup(data.runs), grouped = all.length > 1 && view.grouped;
    const columns = offered().filter((column) => view.columns.includes(column.key) && !(grouped && column.key === "data"));
    const { matches, problem } = tpslQuery.parse(view.query, data, stateOf);
    const shown = problem ? [] : data.runs.filter(matches);
    byId("group-choice").hidden = all.length < 2;
    byId("query-note").textContent = problem || (shown.length === data.runs.length ? "" : shown.length ? `${count(shown.length)} of ${many(data.runs.length, "run")}` : "No run is like that.");
    const bodies = grouped
      ? byGroup(shown).map((runs) => [groupHead(runs, all.find((group) => group[0].data_group === runs[0].data_group), columns.length + 2), ...sorted(runs, view.sort).map((run) => rowOf(run, columns))])
      : [sorted(shown, view.sort).map((run) => rowOf(run, columns))];
    return make("table", { id: "runs" }, make("caption", { class: "unseen" }, "Runs"), headOf(columns, view.sort), ...bodies.map((body) => make("tbody", {}, ...body)));
  };
  const showTable = (view) => {
    const focused = document.activeElement?.dataset?.focus;
    document.querySelector(".runs-table").replaceChildren(table(view));
    refocus(focused);
  };
  const showSelection = () => {
    const number = selected.size;
    byId("compare").disabled = number < 2 || number > MOST_COMPARED;
    byId("compare").textContent = number > MOST_COMPARED ? `Compare at most ${MOST_COMPARED}` : number > 1 ? `Compare ${number} runs` : "Compare";
    byId("clear").hidden = !number;
    for (const { row } of rows.values()) {
      row.querySelector("input").checked = selected.has(row.dataset.run);
      row.classList.toggle("chosen", selected.has(row.dataset.run));
    }
  };

  // ---- above the table
  const sparkline = (points) => {
    const known = points.map(([, value]) => value), low = Math.min(...known), high = Math.max(...known), last = points.at(-1)[0], first = points[0][0];
    const x = (epoch) => (100 * (epoch - first)) / (last - first), y = (value) => 28 - (26 * (value - low)) / (high - low || 1);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(svg.namespaceURI, "polyline");
    svg.setAttribute("viewBox", "0 0 100 30");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    line.setAttribute("points", points.map(([epoch, value]) => `${x(epoch).toFixed(2)},${y(value).toFixed(2)}`).join(" "));
    svg.append(line);
    return svg;
  };
  const CURVES = { test_auc: "Test AUC", validation_auc: "Hold-out AUC, from noisy labels" };
  const runningCard = (run) => {
    const points = run.curve ?? [];
    const curve = points.length ? make("p", { class: "small" }, `${CURVES[run.curve_of]} ${tpslFigures.measured(...points.at(-1).slice(1))} after epoch ${count(points.at(-1)[0])}`) : null;
    return make("article", { class: "card", "data-run": run.name },
      make("h3", {}, make("button", { type: "button", class: "pick", "data-focus": `card ${run.name}`, onclick: () => write({ compare: [run.name] }, { push: true }) }, run.name)),
      bar(run),
      make("p", { class: "how-far" }, [epochOf(run), run.steps ? `step ${count(run.step)} of ${count(run.steps)}` : "", run.samples_per_second ? `${count(run.samples_per_second)} records/s` : "", left(run)].filter(Boolean).join(" · ")),
      points.length > 1 ? sparkline(points) : null, curve);
  };
  const showRunning = () => {
    const running = data.runs.filter(isRunning);
    byId("running").hidden = !running.length;
    const focused = document.activeElement?.dataset?.focus;
    byId("running").querySelector(".going-on").replaceChildren(...running.map(runningCard));
    refocus(focused);
  };
  const tile = (spent) => make("div", { class: "tile" },
    make("p", { class: "what" }, spent.data),
    make("p", { class: "epsilon" }, `ε = ${spent.epsilon_text}`),
    spent.delta_text ? make("p", { class: "small" }, `δ = ${spent.delta_text}`) : null,
    spent.private ? null : make("p", { class: "small no" }, "not private"),
    make("p", { class: "small" }, `${many(spent.runs, "run")}. `,
      `${spent.vaults.length > 1 ? "Vaults" : "Vault"}: ${spent.vaults.join(", ")}.`),
    ...spent.notes.map((text) => make("p", { class: "small" }, text)));
  const showSpent = () => {
    byId("spent").hidden = !data.spent.length;
    byId("spent").querySelector(".tiles").replaceChildren(...data.spent.map(tile));
  };
  const showHeader = () => {
    document.title = data.title;
    byId("title").textContent = data.title;
    byId("about").textContent = data.about;
    byId("about").hidden = !data.about;
    byId("party").textContent = label
      ? "For the label party. Numbers here depend on true labels: not for a feature party."
      : `For ${data.party === "feature" ? "a feature party" : `the feature party ${data.party}`}. Nothing here depends on true labels.`;
    const running = data.runs.filter(isRunning).length, sets = new Set(data.runs.map((run) => run.data_group)).size;
    byId("lead").textContent = data.runs.length
      ? `${many(data.runs.length, "run")}${sets > 1 ? ` on ${count(sets)} data sets` : ""}${running ? `, ${count(running)} running` : ""}.`
      : "There are no runs here yet. The first one shows by itself.";
  };
  const showChoices = (view) => {
    if (document.activeElement !== byId("query")) byId("query").value = view.query;
    byId("group").checked = view.grouped;
    const columns = offered();
    const list = byId("columns").querySelector("div"), keys = columns.map((column) => column.key).join();
    if (list.dataset.keys !== keys) {
      list.dataset.keys = keys;
      list.replaceChildren(...columns.map((column) => make("label", { class: column.ofJob ? "of-job" : null }, make("input", { type: "checkbox", value: column.key, onchange: () =>
        write({ columns: [...list.querySelectorAll("input:checked")].map((box) => box.value).join(",") || "state" }) }), column.name)));
    }
    for (const box of list.querySelectorAll("input")) box.checked = view.columns.includes(box.value);
    const shown = [nameColumn, ...columns.filter((column) => view.columns.includes(column.key))];
    byId("sort").replaceChildren(...shown.flatMap((column) => [["", "↑"], ["-", "↓"]].map(([sign, arrow]) => make("option", { value: sign + column.key, selected: view.sort === sign + column.key }, `${column.name} ${arrow}`))));
  };

  const show = () => {
    const view = read(), compared = view.compared.filter((name) => data.runs.some((run) => run.name === name));
    showHeader();
    for (const id of ["list", "title", "lead"]) byId(id).hidden = compared.length > 0;
    byId("comparison").hidden = !compared.length;
    byId("all").hidden = !data.runs.length;
    if (compared.length) {
      tpslComparison.show(compared.map((name) => data.runs.find((run) => run.name === name)), { card: (run) => (isRunning(run) ? runningCard(run) : null), label, duration, jobText, stateOf,
        leave: () => write({ compare: [] }, { push: true }) });
      return;
    }
    showRunning();
    showSpent();
    showChoices(view);
    showTable(view);
    showSelection();
  };

  // ---- keeping up to date
  const say = (text) => { if (byId("live").textContent !== text) byId("live").textContent = text; };
  let runningBefore = "";
  const look = async () => {
    try {
      const answer = await fetch("data", { headers: { "If-None-Match": version }, cache: "no-store" });
      if (answer.ok) {
        data = await answer.json();
        version = answer.headers.get("ETag");
        show();
      }
      const running = data.runs.filter(isRunning).map((run) => run.name).join("\n");
      if (!answer.ok && running !== runningBefore) show();  // one has fallen quiet
      runningBefore = running;
      say(answer.ok || answer.status === 304 ? "live" : "not live: tpsl ui was started anew, at another address");
    } catch {
      say("not live: tpsl ui has ended");
    }
    setTimeout(look, EVERY);
  };

  tpslDom.followTheme(() => tpslComparison.redraw());
  byId("query").addEventListener("input", (event) => write({ search: event.target.value }));
  document.querySelector(".toolbar").addEventListener("submit", (event) => event.preventDefault());
  byId("sort").addEventListener("change", (event) => write({ sort: event.target.value }));
  byId("group").addEventListener("change", (event) => write({ group: event.target.checked ? null : "no" }));
  byId("compare").addEventListener("click", () => write({ compare: [...selected] }, { push: true }));
  byId("clear").addEventListener("click", () => { selected.clear(); showSelection(); });
  addEventListener("popstate", show);
  show();
  look();
})();
