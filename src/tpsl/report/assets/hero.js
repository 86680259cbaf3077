"use strict";
// The first screen: a sentence, a verdict, scales from guessing to certain, the big numbers. It draws what it is given
// (`tpsl.report.hero`) and computes nothing but places on a scale.
const tpslHero = (() => {
  const { make } = tpslDom;
  // What is worse than guessing stands at the left end.
  const place = (area) => `${(100 * Math.min(Math.max((area - 0.5) / 0.5, 0), 1)).toFixed(2)}%`;
  const span = (style, from, to) => make("span", { class: style, style: `left:${place(from)};right:calc(100% - ${place(to)})` });
  const fact = (name, style, { text, claim, value, command }) => make(name, { class: command ? `${style} command` : style, "data-claim": claim, "data-value": value }, text);

  const bar = ({ name, reached, notes, low, high, start, bound, bound_low: boundLow, bound_high: boundHigh }) => {
    const value = reached.claim === "bound" ? null : reached.value;
    return make("li", { class: start === null ? null : "own-doing" },
      make("span", { class: "who" }, name),
      make("span", { class: value === null && bound === null ? "track unbounded" : "track", "aria-hidden": "true" },
        bound === null ? null : span("allowed", 0.5, bound),
        value === null || start === 0.5 ? null : span("fill", 0.5, start === null ? value : Math.min(start, value)),
        value === null || start === null ? null : span("fill own", Math.min(start, value), value),
        low === null || high === null || high - low < 0.004 ? null : span("whisker", low, high),
        bound === null || boundLow === boundHigh ? null : span("about-bound", boundLow, boundHigh),
        bound === null ? null : make("span", { class: "bound", style: `left:${place(bound)}` })),
      fact("span", "reached", reached),
      notes.length ? make("span", { class: "notes" }, ...notes.map((note) => fact("span", "note", note))) : null);
  };
  const scale = (kind, title, ends, bars) => (bars.length ? make("div", { class: `scale ${kind}`, role: "group", "aria-label": title },
    make("p", {}, title),
    make("ul", {}, ...bars.map(bar)),
    make("p", { class: "ends", "aria-hidden": "true" }, ...ends.map((end) => make("span", {}, end)))) : null);
  const card = ({ of, title, number, notes }) => make("div", { class: `stat ${of}` },
    make("dt", {}, title), fact("dd", "big", number), ...notes.map((note) => fact("dd", "note", note)));

  const show = (place, hero) => {
    place.hidden = !hero;
    if (!hero) return;
    place.replaceChildren(
      make("p", { class: "headline" }, hero.headline),
      make("p", { class: "verdict", "data-verdict": hero.verdict.code }, hero.verdict.text),
      make("div", { class: "scales" },
        ...[scale("features", "What your features give away", ["nothing", "everything"], hero.features),
          scale("attack", hero.attack_title, ["0.5 guessing", "1 certain"], hero.attack),
          scale("utility", hero.utility_title, ["0.5 guessing", "1 perfect"], hero.utility)].filter(Boolean)),
      make("dl", { class: "cards" }, ...hero.cards.map(card)));
  };
  return { show };
})();
