"use strict";
// From runs to charts: every function returns { summary, traces, layout, columns, rows }, or null where there is
// nothing to show. No function here touches the page; `look` says which colours and how much room there are.
const tpslFigures = (() => {
  const METRICS = {
    test_auc: "Test AUC",
    test_log_loss: "Test log loss",
    test_accuracy: "Test accuracy",
    test_calibration_error: "Test calibration error",
    validation_auc: "Hold-out AUC, estimated from noisy labels",
    validation_loss: "Hold-out loss, estimated from noisy labels",
  };
  const ATTACKS = {
    norm: "norm",
    spectral: "spectral",
    spectral_embeddings: "spectral, embeddings",
    shortest_distance: "shortest distance",
    shortest_distance_soft: "shortest distance, soft",
    likelihood: "likelihood ratio",
    noisy_label_with_features: "noisy label with features",
    fingerprint: "fingerprint",
    direction: "direction",
    completion: "completion",
    no_transcript: "no transcript (reference)",
    statistic: "statistic, all other labels known",
  };
  const NON_PRIVATE = "non-private";
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "star", "x", "cross"];
  const MISSING = "–";

  const known = (value) => typeof value === "number";
  const auc = (value) => (known(value) ? value.toFixed(4) : MISSING);
  const interval = (low, high) => (known(low) && known(high) ? `${auc(low)}–${auc(high)}` : "");
  const measured = (value, low, high) => auc(value) + (interval(low, high) ? ` (${interval(low, high)})` : "");
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(4);
  const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : MISSING);
  const significant = (value) => (known(value) ? String(Number(value.toPrecision(4))) : MISSING);
  const atLeast = (value) => (known(value) ? (Math.floor(value * 1e4 + 1e-7) / 1e4).toFixed(4) : MISSING);
  const attackName = (name) => ATTACKS[name] ?? name.replaceAll("_", " ");
  const metricName = (key) => METRICS[key] ?? key.replaceAll("_", " ");
  const testAuc = (run) => run.test?.test_auc ?? null;
  // What the records have spent in all; beside it this run's own share, where other releases have added to it.
  const composed = (run) => run.promise.total_epsilon !== run.promise.epsilon || run.promise.total_delta !== run.promise.delta;
  const budget = (run) => `ε = ${run.promise.total_epsilon_text}` + (run.promise.total_delta ? `, δ = ${run.promise.total_delta_text}` : "")
    + (composed(run) ? ` in all (this run: ε = ${run.promise.epsilon_text})` : "");
  const series = (run) =>
    `${run.promise.mechanism}, ${run.promise.estimator}` + (run.promise.draws > 1 ? `, ${run.promise.draws} draws` : "");

  // Plotly reads text as a kind of HTML; names of runs are text.
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
  const tip = (...lines) => lines.filter(Boolean).map(plain).join("<br>");

  const cell = (text, value) => ({ text, value: value ?? null });
  const areaCell = (value, low, high) => cell(measured(value, low, high), value);

  const baseline = (runs, of) =>
    runs.find((run) => run.promise.epsilon === null && known(testAuc(run)) && run.data_group === of.data_group) ?? null;

  const legend = (look, y) => ({ orientation: "h", x: 0, y, yanchor: "top", font: { color: look.muted, size: look.dense ? 8.8 : 12 } });
  const base = (look, changes = {}) => {
    const axis = {
      gridcolor: look.rule, zeroline: false, linecolor: look.rule, tickcolor: look.rule, automargin: true,
      tickfont: { color: look.muted, size: 12 }, title: { font: { color: look.muted, size: 12.5 }, standoff: 8 },
    };
    const { xaxis = {}, yaxis = {}, ...rest } = changes;
    const merged = (own) => ({ ...axis, ...own, title: { ...axis.title, ...(own.title ?? {}) } });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: look.font, color: look.ink, size: 12.5 },
      margin: { l: 8, r: 26, t: 28, b: 8 },
      hovermode: "closest", dragmode: look.narrow ? false : "zoom",
      hoverlabel: { bgcolor: look.ink, bordercolor: look.ink, font: { color: look.paper, family: look.font, size: 13 }, align: "left" },
      legend: legend(look, -0.16),
      modebar: { bgcolor: "rgba(0,0,0,0)", color: look.muted, activecolor: look.accent, orientation: "h" },
      xaxis: merged(xaxis), yaxis: merged(yaxis), ...rest,
    };
  };

  // Rows of dots: one row for each name, names to the left, or above their row where the screen is narrow. Of very
  // many rows the names are in the tooltips and in the table only.
  const MANY = 40;
  const rowLayout = (names, look, xaxis, extra = {}) => {
    const many = names.length > MANY, step = many ? 9 : look.dense ? 28 : look.narrow ? 46 : 38;
    const labels = look.narrow && !many
      ? names.map((name, row) => ({
          x: 0, xref: "paper", xanchor: "left", y: row, yref: "y", yshift: look.dense ? 11 : 15, yanchor: "middle", showarrow: false,
          text: plain(short(name, 44)), font: { size: look.dense ? 10 : 12, color: look.muted }, bgcolor: look.paper, borderpad: 0,
        }))
      : [];
    const { annotations = [], shapes = [], ...rest } = extra;
    const rows = Math.max(60, step * names.length);
    return base(look, {
      height: rows + 132,
      margin: { l: 8, r: 26, t: 28, b: 104 },
      legend: legend(look, -56 / rows),
      showlegend: true,
      xaxis,
      yaxis: {
        range: [names.length - 0.4, look.narrow ? -0.85 : -0.6], tickvals: many ? [] : names.map((_, row) => row),
        ticktext: many ? [] : names.map((name) => plain(short(name, 34))), showticklabels: !look.narrow && !many, fixedrange: true,
        tickfont: { color: look.ink, size: 12.5 },
      },
      annotations: [...labels, ...annotations],
      shapes,
      ...rest,
    });
  };
  const upright = (x, colour, dash = "solid", width = 1.5) => ({
    type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below", line: { color: colour, dash, width },
  });
  const errors = (values, lows, highs, colour) => ({
    type: "data", symmetric: false, thickness: 2, width: 0, color: colour,
    array: values.map((value, i) => (known(highs[i]) ? highs[i] - value : 0)),
    arrayminus: values.map((value, i) => (known(lows[i]) ? value - lows[i] : 0)),
  });

  const cost = (runs, selected, look) => {
    const shown = runs.filter((run) => known(testAuc(run)));
    if (!shown.length) return null;
    const groups = new Set(shown.map((run) => run.data_group));
    const reference = groups.size === 1 ? baseline(runs, shown[0]) : null;
    const values = shown.map(testAuc);
    const lows = shown.map((run) => run.test.test_auc_low), highs = shown.map((run) => run.test.test_auc_high);
    const differences = shown.map((run) => {
      const against = baseline(runs, run);
      return against && against !== run ? testAuc(run) - testAuc(against) : null;
    });
    const best = shown[values.indexOf(Math.max(...values))];
    if (shown.length === 1) {
      const rest = [["log loss", "test_log_loss"], ["accuracy", "test_accuracy"], ["calibration error", "test_calibration_error"]]
        .filter(([, key]) => known(shown[0].test[key])).map(([name, key]) => `, ${name} ${significant(shown[0].test[key])}`).join("");
      return { summary: `${shown[0].name}: test AUC ${measured(values[0], lows[0], highs[0])}${rest}.` };
    }
    return {
      summary: `Test AUCs from ${auc(Math.min(...values))} to ${auc(Math.max(...values))}; the highest is ${best.name}.`,
      traces: [{
        type: "scatter", mode: "markers", name: "test AUC, 95 % interval", x: values, y: shown.map((_, row) => row),
        error_x: errors(values, lows, highs, look.utility),
        marker: {
          size: shown.map((run) => (run === selected ? 14 : shown.length > MANY ? 6 : 10)), color: look.utility, opacity: 1,
          line: { color: shown.map((run) => (run === selected ? look.ink : look.paper)), width: 1.5 },
        },
        text: shown.map((run, i) => tip(run.name, budget(run), `test AUC ${measured(values[i], lows[i], highs[i])}`,
          known(differences[i]) ? `${signed(differences[i])} against non-private` : "")),
        hovertemplate: "%{text}<extra></extra>", customdata: shown.map((run) => runs.indexOf(run)),
      }, ...(reference ? [{
        type: "scatter", mode: "lines", name: `non-private (${auc(testAuc(reference))})`, x: [null], y: [null],
        line: { color: look.utility, dash: "dash", width: 1.5 }, hoverinfo: "skip",
      }] : [])],
      layout: rowLayout(shown.map((run) => run.name), look, { title: { text: "test AUC" } },
        { shapes: reference ? [upright(testAuc(reference), look.utility, "dash")] : [] }),
      columns: ["Run", "Test AUC", "Against non-private", "Log loss", "Accuracy", "Calibration error"],
      rows: shown.map((run, i) => [cell(run.name), areaCell(values[i], lows[i], highs[i]),
        cell(known(differences[i]) ? signed(differences[i]) : MISSING, differences[i]),
        ...["test_log_loss", "test_accuracy", "test_calibration_error"].map((key) => cell(significant(run.test[key]), run.test[key]))]),
    };
  };

  // What (ε, δ) allows: no ROC curve of an attack that scores by the noisy label alone lies above this line on average.
  const allowed = (promise) => {
    const corner = promise.epsilon === null ? 0 : (1 - promise.delta) / (1 + Math.exp(promise.epsilon));
    return { x: [0, 0, corner, 1 - promise.delta, 1], y: [0, promise.delta, 1 - corner, 1, 1] };
  };
  const attackStyles = (names, attacks, look) => {
    // An attacker without the transcript is no attacker on it: what it reaches is a bound to compare with.
    const groups = { "transcript": look.attacks[0], "transcript+weights": look.attacks[1], "transcript+known labels": look.attacks[2], "features+known labels": look.limit };
    const used = {};
    return names.map((name) => {
      const group = groups[attacks[name].needs] ?? look.attacks[0];
      used[group] = (used[group] ?? -1) + 1;
      return { color: group, dash: DASHES[used[group] % DASHES.length], symbol: SYMBOLS[used[group] % SYMBOLS.length] };
    });
  };

  const roc = (run, look) => {
    const attacks = run.attacks?.attacks ?? {};
    // The area is the bound of one kind of attacker: only attacks of that kind are drawn against it.
    const names = Object.keys(attacks).filter((name) => attacks[name].roc && attacks[name].scored_by === "noisy label");
    const styles = attackStyles(names, attacks, look);
    const limit = allowed(run.promise), best = run.promise.closed_form_roc;
    const line = (name, x, y, style, note) => ({
      type: "scatter", mode: "lines", name, x, y, line: { width: 2.25, ...style },
      text: x.map((f, i) => tip(name, `finds ${(100 * y[i]).toFixed(1)} % of the positives`, `at ${(100 * f).toFixed(2)} % false alarms`, note)),
      hovertemplate: "%{text}<extra></extra>",
    });
    const traces = [
      { ...line("bound, by ε", limit.x, limit.y, { color: look.limit, width: 1.5 }), fill: "tozeroy", fillcolor: look.limitSoft },
      { ...line("guessing", [0, 1], [0, 1], { color: look.limit, width: 1.5, dash: "dot" }), hoverinfo: "skip", hovertemplate: undefined },
      ...(best ? [line("best attack, by the formula", best[0], best[1], { color: look.limit, dash: "dash", width: 1.5 })] : []),
      ...names.map((name, i) => line(attackName(name), [0, ...attacks[name].roc.fpr], [0, ...attacks[name].roc.tpr],
        { color: styles[i].color, dash: styles[i].dash }, `AUC ${auc(attacks[name].auc)}`)),
    ];
    const grid = [0.001, 0.01, 0.05, 0.1, 0.2, 0.5];
    const at = (x, y, f) => {
      let i = 0;
      while (i < x.length - 1 && x[i + 1] <= f) i += 1;
      if (i === x.length - 1) return y[i];
      return y[i] + ((f - x[i]) / (x[i + 1] - x[i])) * (y[i + 1] - y[i]);
    };
    const drawn = traces.filter((trace) => trace.hoverinfo !== "skip");
    return {
      summary: `${names.length ? `ROC curves of ${names.length} attacks that score by the noisy label alone, the mean over batches, beside` : "What the best attack by the noisy label alone reaches by the formula, beside"} the bound that follows from ε.`,
      traces,
      layout: base(look, {
        height: look.dense ? 260 + 10 * traces.length : look.narrow ? 420 + 12 * traces.length : 500 + 8 * traces.length,
        legend: { ...legend(look, look.dense ? -0.3 : -0.16), ...(look.dense ? { x: -0.28, entrywidth: 104, entrywidthmode: "pixels" } : {}) },
        xaxis: { title: { text: "false alarms (FPR)" }, range: [-0.01, 1.01], constrain: "domain", tickformat: ".0%" },
        yaxis: { title: { text: "positives found (TPR)" }, range: [-0.01, 1.02], tickformat: ".0%" },
      }),
      columns: ["Attack", ...grid.map((f) => `TPR at ${significant(100 * f)} % FPR`)],
      rows: drawn.map((trace) => [cell(trace.name), ...grid.map((f) => cell(at(trace.x, trace.y, f).toFixed(4), at(trace.x, trace.y, f)))]),
    };
  };

  // Attacks of a version that did not say whose bound it is have none.
  const bound = (attack) => (known(attack.ceiling_low) ? attack.ceiling : null);
  const estimated = (attack) => attack.ceiling_low < attack.ceiling_high;
  const boundText = (attack) => (known(bound(attack)) ? `${estimated(attack) ? "≈ " : ""}${auc(attack.ceiling)}` : MISSING);
  const above = (run) => Object.entries(run.attacks?.attacks ?? {}).filter(([, attack]) => attack.above_ceiling)
    .map(([name]) => attackName(name));

  const areas = (run, look) => {
    const attacks = run.attacks?.attacks ?? {};
    const names = Object.keys(attacks);
    if (!names.length) return null;
    const styles = attackStyles(names, attacks, look);
    const values = names.map((name) => attacks[name].auc);
    const lows = names.map((name) => attacks[name].auc_low), highs = names.map((name) => attacks[name].auc_high);
    const forms = names.map((name) => attacks[name].closed_form), limits = names.map((name) => bound(attacks[name]));
    const text = names.map((name, i) => tip(attackName(name), `AUC ${measured(values[i], lows[i], highs[i])}`,
      known(forms[i]) ? `by the formula ${auc(forms[i])}` : "",
      known(limits[i]) ? `bound of its kind ${boundText(attacks[name])}, ${estimated(attacks[name]) ? "estimated" : "proved"} for attackers by ${attacks[name].scored_by}` : "",
      `the attacker has: ${attacks[name].needs.replaceAll("+", " + ")}`));
    const key = (name, extra) => ({ type: "scatter", mode: "lines", name, x: [null], y: [null], hoverinfo: "skip", ...extra });
    const best = Math.max(...values.filter(known));
    const strongest = known(values.find(known)) ? `; the strongest is ${attackName(names[values.indexOf(best)])} with AUC ${auc(best)}` : "";
    return {
      summary: `${names.length} attacks, each beside the bound of its own kind of attacker${strongest}.`,
      traces: [
        { type: "scatter", mode: "markers", name: "measured, 95 % interval", x: values, y: names.map((_, row) => row),
          error_x: errors(values, lows, highs, look.attacks[0]),
          marker: { size: 10, color: styles.map((style) => style.color), line: { color: look.paper, width: 1.5 } },
          text, hovertemplate: "%{text}<extra></extra>" },
        { type: "scatter", mode: "markers", name: "by the formula", x: forms, y: names.map((_, row) => row),
          marker: { size: 15, symbol: "diamond-open", color: look.limit, line: { width: 1.5, color: look.limit } }, text, hovertemplate: "%{text}<extra></extra>" },
        { type: "scatter", mode: "markers", name: "bound of its kind of attacker", x: limits, y: names.map((_, row) => row),
          error_x: errors(limits, names.map((name) => attacks[name].ceiling_low), names.map((name) => attacks[name].ceiling_high), look.limit),
          marker: { size: 18, symbol: "line-ns-open", color: look.limit, line: { width: 2, color: look.limit } }, text, hovertemplate: "%{text}<extra></extra>" },
        key("guessing", { line: { color: look.limit, width: 1.5, dash: "dot" } }),
      ],
      layout: rowLayout(names.map(attackName), look, { title: { text: "attack AUC" }, range: [Math.min(0.46, ...lows.filter(known)) - 0.01, 1.01] },
        { shapes: [upright(0.5, look.limit, "dot")] }),
      columns: ["Attack", "The attacker has", "AUC", "By the formula", "Bound of its kind", "TPR at 0.1 % FPR", "TPR at 1 % FPR", "Records"],
      rows: names.map((name, i) => [cell(attackName(name)), cell(attacks[name].needs.replaceAll("+", " + ")), areaCell(values[i], lows[i], highs[i]),
        cell(auc(forms[i]), forms[i]), cell(boundText(attacks[name]), limits[i]),
        cell(auc(attacks[name].tpr_at_fpr_0_001), attacks[name].tpr_at_fpr_0_001),
        cell(auc(attacks[name].tpr_at_fpr_0_01), attacks[name].tpr_at_fpr_0_01), cell(count(attacks[name].records), attacks[name].records)]),
    };
  };

  const audit = (runs, look) => {
    const shown = runs.filter((run) => run.audit && known(run.audit.lower_bound) && known(run.audit.claimed));
    if (!shown.length) return null;
    const bounds = shown.map((run) => run.audit.lower_bound), claims = shown.map((run) => run.audit.claimed);
    const text = shown.map((run) => tip(run.name, `claimed ε = ${run.promise.epsilon_text}${run.promise.delta ? `, δ = ${run.promise.delta_text}` : ""}`, `audited ε ≥ ${atLeast(run.audit.lower_bound)} at ${significant(100 * run.audit.confidence)} % confidence`,
      `${count(run.audit.right)} of ${count(run.audit.guessed)} coins guessed right`, run.audit.passed ? "passed" : "FAILED: the claim does not hold"));
    const failed = shown.filter((run) => !run.audit.passed);
    if (runs.length === 1) {
      const { lower_bound: bound, confidence, right, guessed, passed } = shown[0].audit;
      return { summary: `Records with fair-coin labels were planted, and an attacker guessed ${count(right)} of ${count(guessed)} coins right: ε is at least ${atLeast(bound)} at ${significant(100 * confidence)} % confidence, and ${runs[0].promise.epsilon_text} is claimed. ${passed ? "The claim holds." : "The claim does NOT hold."}` };
    }
    return {
      summary: failed.length ? `The claim of ${failed.map((run) => run.name).join(", ")} does not hold.`
        : "Records with fair-coin labels were planted, and an attacker guessed the coins: no bound exceeds its claim.",
      traces: [
        { type: "scatter", mode: "lines", x: shown.flatMap((_, i) => [bounds[i], claims[i], null]), y: shown.flatMap((_, i) => [i, i, null]),
          line: { color: look.behind, width: 3 }, hoverinfo: "skip", showlegend: false },
        { type: "scatter", mode: "markers", name: "audited: ε is at least this", x: bounds, y: shown.map((_, i) => i), text, hovertemplate: "%{text}<extra></extra>",
          marker: { size: 12, color: look.attacks[0], line: { color: look.paper, width: 1.5 } } },
        { type: "scatter", mode: "markers", name: "claimed ε", x: claims, y: shown.map((_, i) => i), text, hovertemplate: "%{text}<extra></extra>",
          marker: { size: 14, symbol: "line-ns-open", color: look.limit, line: { width: 2.5, color: look.limit } } },
      ],
      layout: rowLayout(shown.map((run) => run.name), look, { title: { text: "ε" }, rangemode: "tozero" }),
      columns: ["Run", "Claimed ε", "Audited ε ≥", "Confidence", "Coins guessed right", "Guesses", "Passed"],
      rows: shown.map((run) => [cell(run.name), cell(run.promise.epsilon_text, run.audit.claimed), cell(atLeast(run.audit.lower_bound), run.audit.lower_bound),
        cell(`${significant(100 * run.audit.confidence)} %`, run.audit.confidence), cell(count(run.audit.right), run.audit.right),
        cell(count(run.audit.guessed), run.audit.guessed), cell(run.audit.passed ? "yes" : "no")]),
    };
  };

  const attackAuc = (run) => run.shown.auc;

  // Both panels of the trade-off for runs on one data set: test AUC against `epsilon`, or against the bound of the
  // strongest `attack`, with what was measured as an open mark. A panel needs two promises to compare.
  const tradeOff = (runs, all, against, look) => {
    const x = against === "epsilon" ? (run) => run.promise.epsilon : (run) => run.shown.bound;
    const isShown = against === "epsilon" ? (run) => x(run) > 0 : (run) => known(attackAuc(run));
    const shown = runs.filter((run) => known(x(run)) && known(testAuc(run)) && isShown(run));
    if (new Set(shown.filter((run) => run.promise.epsilon !== null).map(x)).size < 2) return null;
    const reference = baseline(runs, shown[0]);
    // A mechanism has one colour and one symbol in all panels.
    const kinds = [...new Set(all.filter((run) => run.promise.epsilon !== null).map(series)), NON_PRIVATE];
    const kindOf = (run) => (run.promise.epsilon === null ? NON_PRIVATE : series(run));
    const traces = kinds.filter((kind) => shown.some((run) => kindOf(run) === kind)).flatMap((kind) => {
      const points = shown.filter((run) => kindOf(run) === kind).sort((a, b) => x(a) - x(b));
      const i = kind === NON_PRIVATE ? SYMBOLS.indexOf("star") : kinds.indexOf(kind);
      const values = points.map(testAuc), colour = kind === NON_PRIVATE ? look.muted : look.runs[i % look.runs.length];
      // The line goes through the mean of the runs that promise the same, as of several seeds.
      const levels = [...new Set(points.map((run) => run.promise.epsilon))];
      const mean = (numbers) => numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
      const means = levels.map((level) => points.filter((run) => run.promise.epsilon === level))
        .map((group) => [mean(group.map(x)), mean(group.map(testAuc))]).sort((a, b) => a[0] - b[0]);
      return [
        { type: "scatter", mode: "lines", x: means.map((m) => m[0]), y: means.map((m) => m[1]), line: { color: colour, width: 1.75 },
          hoverinfo: "skip", showlegend: false, legendgroup: kind },
        { type: "scatter", mode: "markers", name: plain(kind), legendgroup: kind, x: points.map(x), y: values,
          error_y: errors(values, points.map((run) => run.test.test_auc_low), points.map((run) => run.test.test_auc_high), colour),
          marker: { size: 9, symbol: SYMBOLS[i % SYMBOLS.length], color: colour, line: { color: look.paper, width: 1 } },
          text: points.map((run) => tip(run.name, budget(run), `test AUC ${measured(testAuc(run), run.test.test_auc_low, run.test.test_auc_high)}`,
            known(attackAuc(run)) ? `${attackName(run.shown.name)}: attack AUC ${auc(attackAuc(run))}, bound ${run.shown.bound_text} (${run.shown.bound_of})` : "")),
          hovertemplate: "%{text}<extra></extra>", customdata: points.map((run) => all.indexOf(run)) },
      ];
    });
    if (against === "attack") traces.push(
      { type: "scatter", mode: "lines", x: shown.flatMap((run) => [attackAuc(run), x(run), null]), y: shown.flatMap((run) => [testAuc(run), testAuc(run), null]),
        line: { color: look.limit, width: 1, dash: "dot" }, hoverinfo: "skip", showlegend: false },
      { type: "scatter", mode: "markers", name: "attack, as measured", x: shown.map(attackAuc), y: shown.map(testAuc), hoverinfo: "skip",
        marker: { size: 9, symbol: "circle-open", color: look.attacks[0], line: { width: 2, color: look.attacks[0] } } });
    if (reference) traces.push({ type: "scatter", mode: "lines", name: `test AUC without privacy (${auc(testAuc(reference))})`, x: [null], y: [null],
      line: { color: look.muted, dash: "dash", width: 1.5 }, hoverinfo: "skip" });
    const levels = [...new Set(shown.map((run) => run.promise.epsilon))].sort((a, b) => a - b);
    return {
      summary: `${shown.length} runs; test AUC from ${auc(Math.min(...shown.map(testAuc)))} to ${auc(Math.max(...shown.map(testAuc)))}.`,
      traces,
      layout: base(look, {
        height: look.narrow ? 390 + 24 * traces.filter((trace) => trace.showlegend !== false).length : 390, showlegend: true,
        xaxis: against === "epsilon"
          ? { title: { text: "ε (logarithmic)" }, type: "log", tickvals: levels.length <= 8 ? levels : undefined, ticktext: levels.length <= 8 ? levels.map(significant) : undefined }
          : { title: { text: "attack AUC: bound of its kind (filled), measured (open)" } },
        yaxis: { title: { text: "test AUC" } },
        shapes: reference ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: testAuc(reference), y1: testAuc(reference), layer: "below",
          line: { color: look.muted, dash: "dash", width: 1.5 } }] : [],
      }),
      columns: ["Run", "Mechanism", "ε", "Attack AUC", "Test AUC"],
      rows: shown.map((run) => [cell(run.name), cell(series(run)), cell(run.promise.epsilon_text, run.promise.epsilon),
        cell(auc(attackAuc(run)), attackAuc(run)), areaCell(testAuc(run), run.test.test_auc_low, run.test.test_auc_high)]),
    };
  };

  // Where there are not two promises to compare, a sentence says what there is.
  const noTradeOff = (runs) => {
    const shown = runs.filter((run) => known(testAuc(run)) && run.promise.epsilon > 0), reference = baseline(runs, runs[0]);
    if (runs.length < 2 || !shown.length) return "";
    const levels = [...new Set(shown.map((run) => run.promise.epsilon_text))];
    if (levels.length > 1) return "";
    const reached = shown.map(testAuc), least = Math.min(...reached), most = Math.max(...reached);
    return `On ${runs[0].data} all private runs have ε = ${levels[0]}, with a test AUC of ${least === most ? auc(most) : `${auc(least)} to ${auc(most)}`}${reference ? `; without privacy it is ${auc(testAuc(reference))}` : ""}. Runs of another ε would show the trade-off.`;
  };

  const metricsOf = (runs) => {
    const keys = new Set();
    for (const run of runs) for (const entry of run.curves) for (const key of Object.keys(entry))
      if (known(entry[key]) && !["epoch", "step"].includes(key) && !/_(low|high|se)$/.test(key)) keys.add(key);
    const order = Object.keys(METRICS);
    return [...keys].sort((a, b) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99));
  };

  const curves = (runs, selected, metric, look) => {
    const shown = runs.filter((run) => run.curves.some((entry) => known(entry[metric])));
    if (!shown.length) return null;
    const last = Math.max(...shown.map((run) => run.curves.at(-1).epoch));
    // An estimate from noisy labels is shown with its interval.
    const form = (entry) => (/validation_auc/.test(metric) ? measured(entry?.[metric], entry?.[`${metric}_low`], entry?.[`${metric}_high`]) : /auc/.test(metric) ? auc(entry?.[metric]) : significant(entry?.[metric]));
    if (shown.every((run) => run.curves.filter((entry) => known(entry[metric])).length < 2))
      return { summary: `${metricName(metric)} after the one epoch that was measured: ${shown.map((run) => `${run.name} ${form(run.curves.find((entry) => known(entry[metric])))}`).join(", ")}.` };
    const ordered = [...shown].sort((a, b) => (a === selected) - (b === selected));
    const many = shown.length > 8;
    const values = shown.flatMap((run) => run.curves.map((entry) => entry[metric]).filter(known)), lowest = Math.min(...values);
    // Plotly cannot draw an axis over numbers that differ by rounding alone.
    const flat = Math.max(...values) - lowest < 1e-9 ? { range: [lowest - 0.05, lowest + 0.05] } : {};
    const pointTip = (run, entry) => tip(run.name, `epoch ${entry.epoch}: ${significant(entry[metric])}`, interval(entry[`${metric}_low`], entry[`${metric}_high`]));
    // Of many runs all but the chosen one are a single broken line: two hundred of them draw as fast as one.
    const points = shown.filter((run) => run !== selected).flatMap((run) => [...run.curves.filter((entry) => known(entry[metric])).map((entry) => [run, entry]), null]);
    const behind = { type: "scatter", mode: "lines+markers", name: "the other runs", x: points.map((p) => p && p[1].epoch), y: points.map((p) => p && p[1][metric]),
      line: { color: look.behind, width: 1.5 }, marker: { size: 5, color: look.behind }, connectgaps: false,
      text: points.map((p) => (p ? pointTip(...p) : "")), hovertemplate: "%{text}<extra></extra>", customdata: points.map((p) => (p ? runs.indexOf(p[0]) : null)) };
    return {
      summary: `${metricName(metric)} after each epoch, up to epoch ${last}; the chosen run is the bold line.`,
      traces: [...(many ? [behind] : []), ...(many ? shown.filter((run) => run === selected) : ordered).map((run) => {
        const entries = run.curves.filter((entry) => known(entry[metric]));
        const chosen = run === selected;
        const colour = look.runs[runs.indexOf(run) % look.runs.length];
        return { type: "scatter", mode: "lines+markers", name: plain(short(run.name, 40)), x: entries.map((entry) => entry.epoch), y: entries.map((entry) => entry[metric]),
          line: { color: colour, width: chosen ? 3 : 1.5 }, marker: { size: chosen ? 8 : 5, color: colour },
          text: entries.map((entry) => pointTip(run, entry)), hovertemplate: "%{text}<extra></extra>", customdata: entries.map(() => runs.indexOf(run)) };
      })],
      layout: base(look, { height: 420, showlegend: true, xaxis: { title: { text: "epoch" }, dtick: Math.max(1, Math.ceil(last / 12)), range: [0.8, Math.max(last, 2) + 0.2] }, yaxis: { title: { text: metricName(metric) }, ...flat } }),
      columns: ["Run", ...Array.from({ length: last }, (_, i) => `Epoch ${i + 1}`)],
      rows: shown.map((run) => [cell(run.name), ...Array.from({ length: last }, (_, i) => {
        const entry = run.curves.find((each) => each.epoch === i + 1);
        return cell(form(entry), entry?.[metric]);
      })]),
    };
  };

  const throughput = (runs, selected, look) => {
    const shown = runs.filter((run) => known(run.samples_per_second) && run.samples_per_second > 0);
    if (!shown.length) return null;
    const values = shown.map((run) => run.samples_per_second);
    if (shown.length === 1) return { summary: `${count(values[0])} records in a second${known(shown[0].seconds) ? `, ${significant(shown[0].seconds)} s in all` : ""}.` };
    return {
      summary: `From ${count(Math.min(...values))} to ${count(Math.max(...values))} records in a second.`,
      traces: [{ type: "bar", orientation: "h", x: values, y: shown.map((_, row) => row), width: shown.length > MANY ? 0.8 : 0.4, name: "records in a second", showlegend: false,
        marker: { color: shown.map((run) => (run === selected ? look.ink : look.behind)) },
        text: shown.map((run) => tip(run.name, `${count(run.samples_per_second)} records in a second`, known(run.seconds) ? `${significant(run.seconds)} s in all` : "")),
        textposition: "none", hovertemplate: "%{text}<extra></extra>", customdata: shown.map((run) => runs.indexOf(run)) }],
      layout: rowLayout(shown.map((run) => run.name), look, { title: { text: "records in a second" }, rangemode: "tozero" }, { showlegend: false }),
      columns: ["Run", "Records in a second", "Seconds in all", "Steps", "Training records"],
      rows: shown.map((run) => [cell(run.name), cell(count(run.samples_per_second), run.samples_per_second), cell(significant(run.seconds), run.seconds),
        cell(count(run.step), run.step), cell(count(run.train_records), run.train_records)]),
    };
  };

  return { cost, roc, above, areas, audit, tradeOff, noTradeOff, metricsOf, metricName, curves, throughput, baseline, composed, testAuc, attackAuc, attackName, auc, interval, measured, signed, count, atLeast, known, MISSING };
})();
