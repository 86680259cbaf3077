"use strict";
// The page: shows whatever `tpslReport.show(data)` is given, once for a report, again and again for a live page.
const tpslReport = (() => {
  const figures = tpslFigures;
  const { make, byId, table } = tpslDom;
  const part = (name) => document.querySelector(`[data-part="${name}"]`);
  const state = { data: null, selected: 0, metric: null, allColumns: false };
  const MANY = 40;  // runs

  const chosen = () => state.data.runs[state.selected];

  const { look, chart, redraw, update } = tpslCharts({
    revision: () => `${chosen().name} ${state.metric}`,
    pick: (run) => { if (run !== state.selected) select(run); },
    isLong: () => state.data.runs.length > MANY,
  });

  // ---- sections
  const badge = (run) => {
    if (run.promise.large_delta) return make("span", { class: "badge no" }, `only up to δ = ${run.promise.total_delta_text}`);
    const private_ = run.promise.private;
    return make("span", { class: `badge ${private_ ? "yes" : "no"}` }, private_ ? "private" : "not private");
  };
  const unfinished = (run) => (run.state === "finished" ? null
    : make("span", { class: "badge wait" }, `unfinished: epoch ${run.epoch} of ${run.epochs}, step ${figures.count(run.step)}`));
  const facts = (pairs) => make("dl", {}, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const withInterval = (value, low, high) => {
    const range = figures.interval(low, high);
    return [figures.auc(value), range ? make("small", {}, range) : null];
  };

  const glance = () => {
    const { runs, party } = state.data;
    const label = party === "label";
    // [name, whether it is a number, whether it is one of the columns on demand]
    const columns = [["Run"], ["ε", 1], ...(label ? [["Test AUC", 1], ["Attack AUC", 1]] : []), ["Bound", 1],
      ["Mechanism", 0, 1], ["Private", 0, 1], ...(label ? [["Cost in AUC", 1, 1]] : []), ...(label ? [["Audited ε\u00a0≥", 1, 1]] : []), ["Records/s", 1, 1]];
    const styleOf = ([, isNumber, onDemand]) => [isNumber ? "number" : "", onDemand ? "more" : ""].join(" ").trim() || null;
    const row = (run, index) => {
      const reference = figures.baseline(runs, run), attack = run.shown;
      const difference = reference && reference !== run && figures.known(figures.testAuc(run)) ? figures.testAuc(run) - figures.testAuc(reference) : null;
      const cells = [
        ["epsilon", run.promise.total_epsilon, [run.promise.total_epsilon_text, run.promise.total_delta ? make("small", {}, `δ = ${run.promise.total_delta_text}`) : null,
          figures.composed(run) ? make("small", {}, `this run: ${run.promise.epsilon_text}`) : null]],
        ...(label ? [
          ["test_auc", figures.testAuc(run), withInterval(figures.testAuc(run), run.test?.test_auc_low, run.test?.test_auc_high)],
          ["attack_auc", attack.auc, [...withInterval(attack.auc, attack.auc_low, attack.auc_high), attack.name ? make("small", {}, figures.attackName(attack.name)) : null]],
        ] : []),
        ["bound", attack.bound, [attack.bound_text, make("small", {}, attack.bound_of)]],
        ["mechanism", null, [run.promise.mechanism, make("small", {}, run.promise.estimator)]],
        ["private", null, [run.promise.large_delta ? `only up to δ = ${run.promise.total_delta_text}` : run.promise.private ? "yes" : "no"]],
        ...(label ? [["difference", difference, [difference === null ? figures.MISSING : figures.signed(difference)]]] : []),
        ...(label ? [["lower_bound", run.audit?.lower_bound, [figures.atLeast(run.audit?.lower_bound)]]] : []),
        ["samples_per_second", run.samples_per_second, [figures.count(run.samples_per_second || null)]],
      ];
      const pick = make("button", { type: "button", class: "pick", onclick: () => select(index) }, run.name);
      const notes = [run.promise.private ? null : "not private", run.state === "finished" ? null : `unfinished, epoch ${run.epoch} of ${run.epochs}`];
      return make("tr", { "aria-current": index === state.selected ? "true" : null }, make("th", { scope: "row" }, pick, ...notes.map((note) => note && make("small", {}, note))),
        ...cells.map(([field, value, shown], i) => make("td", { class: styleOf(columns[i + 1]), "data-field": field, "data-value": value, "data-head": columns[i + 1][0] },
          make("span", {}, ...shown.filter((x) => x !== null)))));
    };
    const focused = [...part("glance").querySelectorAll(".pick")].indexOf(document.activeElement);
    part("glance").replaceChildren(make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "All runs" },
      make("table", { id: "numbers", class: state.allColumns ? null : "few" }, make("caption", { class: "unseen" }, "All runs"),
        make("thead", {}, make("tr", {}, ...columns.map((column) => make("th", { scope: "col", class: styleOf(column) }, column[0])))),
        make("tbody", {}, ...runs.map(row)))),
      make("button", { type: "button", id: "more-columns", "aria-pressed": String(state.allColumns), onclick: () => {
        state.allColumns = !state.allColumns;
        glance();
        byId("more-columns").focus();
      } }, state.allColumns ? "Fewer columns" : "More columns"),
      make("p", { class: "small" }, label
        ? "ε: what the records have spent in all. Attack AUC: the strongest attack that was measured. Bound: the most that attackers of its kind can reach, on average; proved from this run’s own ε, or estimated with true labels (≈). Cost: against the run without noise on the same data."
        : "Bound: the most that an attacker of the kind named there can reach, on average, proved from this run’s own ε. Features that say something about the label add to it."));
    part("glance").querySelectorAll(".pick")[focused]?.focus();
  };

  // Who, what, when, by which program: what a reader asks before believing a page.
  const strip = () => {
    const run = chosen(), { party } = state.data, found = run.statement;
    const day = (time) => time?.slice(0, 16).replace("T", " ");
    const records = [[run.train_records, "training"], [run.test_records, "test"]].filter(([number]) => figures.known(number));
    const stated = found ? `${found.file}, signed by ${found.party} on ${day(found.time)} UTC: at most ${found.spent_text}${found.entries_since ? `; ${figures.count(found.entries_since)} newer ledger ${found.entries_since === 1 ? "entry" : "entries"}` : ""}`
      : party === "label" ? "none yet: tpsl vault statement VAULT --certs FOLDER" : "none here: ask the label party for one";
    byId("strip").replaceChildren(facts([["Parties", ["label", ...run.feature_parties].join(", ")], ["Data", run.data],
      ["Records", records.map(([number, of]) => `${figures.count(number)} ${of}`).join(", ")],
      ["ε of the whole vault", run.ledger?.epsilon_text], ["Last written (UTC)", day(run.updated)], ["Trained by", run.program], ["Page made by", state.data.program], ["Signed statement", stated]]));
  };

  const versions = () => {
    const rows = state.data.versions, label = state.data.party === "label";
    byId("versions").hidden = !rows.length;
    const area = (value, low, high) => ({ text: figures.measured(value, low, high), value });
    part("versions").replaceChildren(table("Versions", ["Run", "Version", "Starts from", "Last written (UTC)", "Training records", "ε of its release", ...(label ? ["ε in all", "Noisy hold-out AUC", "Test AUC"] : [])],
      rows.map((row) => [{ text: row.run }, { text: row.version }, { text: row.starts_from }, { text: row.updated?.slice(0, 19).replace("T", " ") ?? figures.MISSING },
        { text: figures.count(row.train_records), value: row.train_records }, { text: row.epsilon_text }, ...(label ? [{ text: row.total_epsilon_text }, area(row.validation_auc, row.validation_auc_low, row.validation_auc_high), area(row.test_auc)] : [])]), { style: "wide" }));
  };

  const promise = () => {
    const run = chosen(), p = run.promise, onLabels = run.job.method !== "statistic";
    part("promise").replaceChildren(make("div", { class: "card" },
      make("h3", { style: "margin-top:0" }, run.name),
      make("p", { class: "promise-head" }, make("span", { class: "epsilon" }, `ε = ${p.total_epsilon_text}`),
        figures.composed(run) ? make("span", { class: "share" }, `in all; this run’s release: ε = ${p.epsilon_text}${p.delta ? `, δ = ${p.delta_text}` : ""}`) : null, badge(run), unfinished(run)),
      make("p", {}, p.words), ...run.of_vault.map((text) => make("p", { class: "of-vault" }, text)),
      make("p", {}, run.features_words),
      p.worth_words ? make("p", { class: "worth" }, p.worth_words) : null,
      facts([["δ", p.total_delta_text], ["Mechanism", p.mechanism], ["Estimator", onLabels ? p.estimator : null], ["Draws for each record", onLabels ? String(p.draws) : null],
        ["Epoch whose weights were kept", run.kept_epoch === null ? null : `${run.kept_epoch} of ${run.epoch}`], ["Labels in noisy statistics", run.statistic_records ? figures.count(run.statistic_records) : null], ["Classes", String(run.classes)],
        ["Starts from", run.origin && `${run.origin.run}, whose ${figures.count(run.origin.train_records)} records ${run.origin.total_epsilon_text === null ? "are in these weights too" : `had spent ε = ${run.origin.total_epsilon_text} in all`}`],
        ...Object.entries(run.learned).map(([name, text]) => [name[0].toUpperCase() + name.slice(1), text])])));
    part("sightings").replaceChildren(table("Who saw what", ["What", "Feature party", "Label party"],
      run.sightings.map((row) => [row.what, row.feature, row.label].map((text) => ({ text }))), { style: "wide" }));
    ledger(run);
  };

  const ledger = (run) => {
    const found = run.ledger;
    if (!found) {
      part("ledger").replaceChildren(make("p", { class: "intro" }, run.ledger_note || "Nothing was released yet."));
      return;
    }
    const rows = found.entries.map((entry) => [{ text: String(entry.sequence) }, { text: entry.time.slice(0, 19).replace("T", " ") }, { text: entry.what },
      { text: entry.records === null ? "" : figures.count(entry.records), value: entry.records }, { text: entry.epsilon_text }, { text: entry.delta_text },
      { text: entry.hash.slice(0, 16) }]);
    const entries = table("Entries of the ledger", ["#", "When (UTC)", "What", "Records", "ε", "δ", "Hash begins"], rows, { style: "wide ledger" });
    for (const row of entries.querySelectorAll("tbody tr")) row.lastChild.classList.add("hash");
    part("ledger").replaceChildren(
      facts([["Vault", found.vault], ["Largest ε of any record", found.epsilon_text], ["Largest δ of any record", found.delta_text],
        ["Records with a release", `${figures.count(found.released_records)} of ${figures.count(found.records)}`], ["Largest ε of any unit", found.unit_text]]),
      make("p", { class: "intro" }, "Head of the hash chain, which fixes the whole history: ", make("code", { id: "head" }, found.head)),
      entries);
  };

  const attacks = () => {
    const run = chosen(), label = state.data.party === "label", found = run.attacks;
    byId("attacks").querySelector("h2").textContent = label ? "What an attacker got" : "What an attacker can get";
    part("attack-intro").textContent = !label
      ? "The bound of an attacker who scores by what was released alone, on average, and what the best such attack reaches by the formula. ε bounds how much surer anybody can become, not what features alone say about a label."
      : found
        ? `${run.name}: every attack is scored by the label party with true labels and stands beside the bound of its own kind of attacker. For an attacker who scores by the noisy label alone that is what ε allows, on average. Gradients and embeddings also carry what features say about the label, which ε does not bound: for attackers who use them the bound is the AUC of noisy label and best prediction from features together${found.predicted_from?.length ? `, estimated with true labels from ${found.predicted_from.join(" and ")}` : ""}.${figures.above(run).map((name) => ` The ${name} attack is above its bound by more than chance: this may be a bug.`).join("")}`
        : `${run.name} was not attacked: ${run.recorded ? "tpsl attack RUN" : "train it with --set local.record_transcript=true, then tpsl attack RUN"} fills this section.`;
    chart(part("roc"), "roc", () => (label && found ? "ROC of attacks by the noisy label alone" : "Bound of attacks by the noisy label alone"), (style) => figures.roc(chosen(), style));
    chart(part("areas"), "areas", () => "Attack AUC", (style) => figures.areas(chosen(), style));
    part("areas").hidden = !found;
    const reasons = new Map();
    for (const [name, reason] of Object.entries(found?.not_run ?? {})) reasons.set(reason, [...(reasons.get(reason) ?? []), name.replaceAll("_", " ")]);
    part("not-run").textContent = [...reasons].map(([reason, names]) => `Not run: ${names.join(", ")} (${names.length > 1 ? "each" : "it"} ${reason}).`).join(" ");
    chart(part("audit"), "audit", () => "Claimed and audited ε", (style) => figures.audit(state.data.runs, style));
    const replay = run.replay, audited = run.examination;
    const said = (text) => make("p", { class: "intro" }, text);
    part("replay").replaceChildren(
      ...(audited ? [said(audited.passed ? `The audit looked at ${audited.parts.join(", ")} and found nothing.` : `The audit FAILED. ${audited.accusations.join(". ")}.`)] : []),
      ...(replay ? [said(replay.passed
        ? `Record and replay: ${figures.count(replay.flipped)} true labels flipped, the noisy ones kept; all ${figures.count(replay.bytes)} bytes of transcript and weights stayed the same.`
        : `Record and replay FAILED: ${replay.differences?.length ?? "some"} files changed when true labels were flipped.`)] : []));
  };

  const tradeOff = () => {
    const place = part("trade-off"), groups = Map.groupBy(state.data.runs, (run) => run.data_group);
    let letter = 0;
    const sentences = [];
    [...groups.values()].forEach((runs, number) => {
      const records = runs.find((run) => run.train_records !== null)?.train_records;
      const drawn = ["epsilon", "attack"].filter((against) => figures.tradeOff(runs, state.data.runs, against, look(600)));
      for (const against of drawn) {
        const name = `(${String.fromCharCode(97 + letter)}) ${runs[0].data}, ${figures.count(records)} training records`;
        letter += 1;
        chart(place, `trade-off-${number}-${against}`, () => name, (style) => figures.tradeOff(runs, state.data.runs, against, style));
      }
      if (!drawn.length) sentences.push(figures.noTradeOff(runs));
    });
    part("no-trade-off").textContent = sentences.filter(Boolean).join(" ");
    part("trade-off-intro").hidden = letter === 0;
    byId("trade-off").hidden = letter === 0 && !part("no-trade-off").textContent;
  };

  const training = () => {
    const { runs, party } = state.data, metrics = figures.metricsOf(runs);
    byId("training").querySelector("h2").textContent = party === "label" ? "Training" : "Speed";
    part("training-intro").textContent = party === "label" ? "Metrics after each epoch; test metrics use true labels and never leave the label party." : "How fast this party trained.";
    part("curves").hidden = !metrics.length;
    if (metrics.length) {
      if (!metrics.includes(state.metric)) state.metric = metrics[0];
      let picker = byId("metric");
      const tools = picker ? null : make("span", {}, make("label", { for: "metric", class: "unseen" }, "Metric"), make("select", { id: "metric", onchange: (event) => {
        state.metric = event.target.value;
        update("curves");
      } }));
      chart(part("curves"), "curves", () => figures.metricName(state.metric), (style) => figures.curves(state.data.runs, chosen(), state.metric, style), { tools });
      picker = byId("metric");
      picker.replaceChildren(...metrics.map((key) => make("option", { value: key, selected: key === state.metric }, figures.metricName(key))));
    }
    chart(part("throughput"), "throughput", () => "Throughput", (style) => figures.throughput(state.data.runs, chosen(), style));
    byId("training").hidden = !metrics.length && !runs.some((run) => run.samples_per_second);
  };

  const agreement = () => {
    const run = chosen();
    const flat = (value, name) => (value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.entries(value).flatMap(([key, inner]) => flat(inner, name ? `${name}.${key}` : key)) : [[name, value]]);
    const text = (value) => (value === null ? figures.MISSING : Array.isArray(value) ? value.map((x) => (typeof x === "object" ? JSON.stringify(x) : x)).join(", ") : String(value));
    byId("digest").textContent = run.job_digest;
    part("agreement").replaceChildren(...Object.entries(run.job).flatMap(([section, values]) => [make("h3", {}, section[0].toUpperCase() + section.slice(1)),
      facts(flat(values, "").map(([name, value]) => [name.replaceAll("_", " "), text(value)]))]));
  };

  const localHead = () => {
    const head = chosen().local_head;
    byId("local-head")?.remove();
    if (head) part("cost").after(make("p", { class: "intro", id: "local-head" },
      `${chosen().name} also has a local head, trained on true labels, which never leaves the label party: test AUC ${figures.auc(head.test_auc)}.`));
  };

  const shared = () => {
    byId("shared")?.remove();
    if (chosen().shared_words) part("cost").after(make("p", { class: "intro", id: "shared" }, `${chosen().name}: ${chosen().shared_words}`));
  };

  const contents = () => {
    const sections = [...document.querySelectorAll("main section:not([hidden])")];
    byId("contents").replaceChildren(...sections.map((section) => make("li", {}, make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent))));
  };

  const draw = () => {
    const { runs } = state.data;
    byId("run").value = String(state.selected);
    tpslHero.show(byId("hero"), state.data.heroes[chosen().name]);
    strip();
    glance();
    versions();
    promise();
    byId("cost").hidden = !chosen().local_head && !chosen().shared_words && !runs.some((run) => figures.known(figures.testAuc(run)));
    if (!byId("cost").hidden) chart(part("cost"), "cost", () => "Test AUC", (style) => figures.cost(state.data.runs, chosen(), style));
    localHead();
    shared();
    attacks();
    tradeOff();
    training();
    agreement();
    contents();
    redraw();
  };

  const select = (index) => {
    const { runs } = state.data;
    state.selected = ((index % runs.length) + runs.length) % runs.length;
    draw();
    byId("announce").textContent = `Run ${runs[state.selected].name}`;
  };

  const show = (data) => {
    const before = state.data ? chosen().name : null;
    state.data = data;
    state.selected = Math.max(0, data.runs.findIndex((run) => run.name === before));
    if (before === null) state.selected = data.first;
    document.title = data.title;
    byId("title").textContent = data.title;
    byId("lead").textContent = data.lead;
    document.body.classList.toggle("one-run", data.runs.length === 1);
    byId("lead").hidden = data.runs.length < 2;  // of one run the first screen says it all
    byId("about").textContent = data.about;
    byId("about").hidden = !data.about;
    const label = data.party === "label";
    byId("measured").hidden = !label;
    part("promise-note").textContent = label ? "can be handed over: tpsl report RUN --for feature" : "of the label party";
    byId("party").textContent = data.party === "label"
      ? "For the label party only: it depends on true labels."
      : `For the feature party ${data.party}. Nothing here depends on true labels.`;
    byId("chooser").hidden = data.runs.length < 2;
    const names = data.runs.map((run) => run.name);
    if (names.join("\n") !== [...byId("run").options].map((option) => option.text).join("\n"))  // an open list stays open
      byId("run").replaceChildren(...names.map((name, index) => make("option", { value: String(index) }, name)));
    draw();
  };

  const start = () => {
    tpslDom.followTheme(redraw);
    byId("run").addEventListener("change", (event) => select(Number(event.target.value)));
    byId("previous").addEventListener("click", () => select(state.selected - 1));
    byId("next").addEventListener("click", () => select(state.selected + 1));
  };

  start();
  return { show };
})();
if (document.getElementById("data")) tpslReport.show(JSON.parse(document.getElementById("data").textContent));
