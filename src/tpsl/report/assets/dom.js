"use strict";
// What all pages are made of: elements, tables, and the theme.
const tpslDom = (() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  const make = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };

  const table = (caption, columns, rows, { style = null } = {}) => {
    const isNumber = (column) => rows.some((row) => typeof row[column].value === "number");
    const right = columns.map((_, column) => (column && isNumber(column) ? "number" : null));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell, column) => make(column ? "td" : "th",
      { scope: column ? null : "row", class: right[column], "data-head": columns[column], "data-value": cell.value ?? null }, cell.text))));
    return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
      make("table", { class: style },
        make("caption", { class: "unseen" }, caption),
        make("thead", {}, make("tr", {}, ...columns.map((column, i) => make("th", { scope: "col", class: right[i] }, column)))),
        make("tbody", {}, ...body)));
  };

  // The theme: the reader's system decides until the button is used; the choice is kept where the browser allows it.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = (write) => {
    try {
      return write ? localStorage.setItem("tpsl-theme", write) : localStorage.getItem("tpsl-theme");
    } catch {
      return null;
    }
  };
  const theme = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
  const nameThemeButton = () => {
    byId("theme").textContent = theme() === "dark" ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `${byId("theme").textContent} theme`);
  };
  // Let the button change the theme from now on; `changed` is told of every change.
  const followTheme = (changed) => {
    const remembered = stored();
    if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;
    nameThemeButton();
    byId("theme").addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      stored(root.dataset.theme);
      nameThemeButton();
      changed();
    });
    system.addEventListener("change", () => { nameThemeButton(); changed(); });
  };

  return { make, byId, table, followTheme };
})();
