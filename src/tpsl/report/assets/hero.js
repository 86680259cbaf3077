"use strict";
// The first screen: a sentence, two scales from guessing to certain, the big numbers. It draws what it is given
// (`tpsl.report.hero`) and computes nothing but places on a scale.
const tpslHero = (() => {
  const { make } = tpslDom;
  // What is worse than guessing stands at the left end.
  const place = (area) => `${(100 * Math.min(Math.max((area - 0.5) / 0.5, 0), 1)).toFixed(2)}%`;
  const span = (style, from, to) => make("span", { class: style, style: `left:${place(from)};right:calc(100% - ${place(to)})` });

  const bar = ({ name, text, value, low, high, ceiling }) => make("li", { class: value === null ? null : "measured" },
    make("span", { class: "who" }, name),
    make("span", { class: value === null && ceiling === null ? "track unbounded" : "track", "aria-hidden": "true" },
      ceiling === null ? null : span("allowed", 0.5, ceiling),
      value === null ? null : span("fill", 0.5, value),
      low === null || high === null || high - low < 0.004 ? null : span("whisker", low, high),
      ceiling === null ? null : make("span", { class: "ceiling", style: `left:${place(ceiling)}` })),
    make("span", { class: "reached" }, text));
  const scale = (kind, title, ends, bars) => (bars.length ? make("div", { class: `scale ${kind}`, role: "group", "aria-label": title },
    make("p", {}, title),
    make("ul", {}, ...bars.map(bar)),
    make("p", { class: "ends", "aria-hidden": "true" }, ...ends.map((end) => make("span", {}, end)))) : null);

  const fact = (name, style, { text, claim, value }) => make(name, { class: style, "data-claim": claim, "data-value": value }, text);
  const card = ({ of, title, number, notes }) => make("div", { class: `stat ${of}` },
    make("dt", {}, title), fact("dd", "big", number), ...notes.map((note) => fact("dd", "note", note)));

  const show = (place, hero) => {
    place.hidden = !hero;
    if (!hero) return;
    place.replaceChildren(
      make("p", { class: "headline" }, hero.headline),
      make("div", { class: "scales" },
        scale("features", "What your features give away", ["nothing", "everything"], hero.features),
        scale("attack", "What an attacker gets of labels", ["0.5 guessing", "1 certain"], hero.attack),
        scale("utility", "What the model can do", ["0.5 guessing", "1 perfect"], hero.utility)),
      make("dl", { class: "cards" }, ...hero.cards.map(card)));
  };
  return { show };
})();
