"use strict";
// The search box: words, and comparisons such as `ε ≤ 1` or `training.batch_size = 512`.
const tpslQuery = (() => {
  const FIELDS = {
    epsilon: (run) => run.epsilon ?? Infinity,
    total_epsilon: (run) => run.total_epsilon ?? Infinity,
    test_auc: (run) => run.test_auc,
    attack_auc: (run) => run.attack_auc,
    bound: (run) => run.bound,
    duration: (run) => run.seconds,
    records: (run) => run.train_records,
    epochs: (run) => run.epochs,
    date: (run) => run.updated,
    run: (run) => run.name,
    data: (run) => run.data,
    mechanism: (run) => run.mechanism,
    estimator: (run) => run.estimator,
    private: (run) => (run.private ? "yes" : "no"),
  };
  const OTHER_NAMES = { "ε": "epsilon", eps: "epsilon", total: "total_epsilon", auc: "test_auc", attack: "attack_auc", seconds: "duration", name: "run", dataset: "data" };
  const COMPARISON = /([^\s"<>=≤≥!]+)\s*(<=|>=|!=|≤|≥|≠|<|>|=)\s*("[^"]*"|[^\s<>=≤≥!]+)/g;
  const COMPARED = {
    "<": (a, b) => a < b, ">": (a, b) => a > b, "≤": (a, b) => a <= b, "≥": (a, b) => a >= b, "=": (a, b) => a === b, "≠": (a, b) => a !== b,
  };
  const SIGNS = { "<=": "≤", ">=": "≥", "!=": "≠" };

  // A field by its name, by another name of it, by a job's dotted name or by the end of one.
  const fieldOf = (name, jobKeys, stateOf) => {
    const plain = name.toLowerCase(), own = OTHER_NAMES[plain] ?? plain;
    if (own === "state") return stateOf;
    if (Object.hasOwn(FIELDS, own)) return FIELDS[own];
    const key = jobKeys.includes(plain) ? plain : jobKeys.find((one) => one.endsWith(`.${plain}`));
    return key ? (run, job) => run.job[key] ?? job[key] : null;
  };
  const comparable = (value, wanted) => {
    if (value === null || value === undefined) return null;
    const text = wanted.replaceAll('"', ""), number = /^(∞|inf|infinity)$/i.test(text) ? Infinity : Number(text);
    if (typeof value === "number") return text !== "" && !Number.isNaN(number) ? [value, number] : null;
    return [String(value).toLowerCase().slice(0, /^\d{4}-/.test(text) ? text.length : undefined), text.toLowerCase()];
  };

  // From a text to a function of a run, or to a sentence that says what is wrong with it. `stateOf` says what a run does now.
  const parse = (text, { job, runs }, stateOf) => {
    const jobKeys = [...new Set([...Object.keys(job), ...runs.flatMap((run) => Object.keys(run.job))])];
    const tests = [], problems = [];
    const rest = text.replace(COMPARISON, (_, name, sign, wanted) => {
      const field = fieldOf(name, jobKeys, stateOf), compare = COMPARED[SIGNS[sign] ?? sign];
      if (!field) problems.push(`Nothing is called “${name}”: name a column, or a key of the job such as training.epochs.`);
      else tests.push((run) => {
        const pair = comparable(field(run, job), wanted);
        return pair !== null && compare(...pair);
      });
      return " ";
    });
    for (const word of rest.toLowerCase().match(/"[^"]*"|\S+/g) ?? []) {
      const wanted = word.replaceAll('"', "");
      tests.push((run) => searched(run).includes(wanted) || stateOf(run).includes(wanted));
    }
    return { matches: (run) => tests.every((test) => test(run)), problem: problems[0] ?? "" };
  };
  const texts = new WeakMap();
  const searched = (run) => {
    if (!texts.has(run)) texts.set(run, [run.name, run.data, run.mechanism, run.estimator, run.private ? "private" : "not private",
      ...Object.entries(run.job).map(([key, value]) => `${key}=${value}`)].join("\n").toLowerCase());
    return texts.get(run);
  };

  return { parse };
})();
