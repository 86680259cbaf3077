"use strict";
// Switches runs, sorts tables, changes the theme. The page is complete without it, and no number is made here.
(() => {
  const root = document.documentElement;
  const all = (selector) => [...document.querySelectorAll(selector)];

  // ---- the theme: the reader's system decides until the button is used
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const stored = (theme) => {
    try {
      return theme ? localStorage.setItem("tpsl-theme", theme) : localStorage.getItem("tpsl-theme");
    } catch {
      return null;
    }
  };
  const theme = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
  const nameButton = () => {
    button.textContent = theme() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `${button.textContent} theme`);
  };
  const remembered = stored();
  if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    stored(root.dataset.theme);
    nameButton();
  });
  system.addEventListener("change", nameButton);
  nameButton();

  // ---- one run at a time
  const select = document.getElementById("run");
  const show = (number) => {
    select.value = number;
    for (const part of all("[data-run]")) part.hidden = part.dataset.run !== select.value;
    for (const link of all("[data-pick]")) {
      link.closest("tr").setAttribute("aria-current", String(link.dataset.pick === select.value));
    }
  };
  if (select) {
    root.classList.add("scripted");
    const change = (number) => {
      show(String((number + select.options.length) % select.options.length));
      document.getElementById("announce").textContent = `Run ${select.selectedOptions[0].text}`;
    };
    document.querySelector(".chooser").hidden = false;
    select.addEventListener("change", () => change(select.selectedIndex));
    for (const step of all("[data-step]")) step.addEventListener("click", () => change(select.selectedIndex + Number(step.dataset.step)));
    for (const link of all("[data-pick]")) link.addEventListener("click", () => change(Number(link.dataset.pick)));
    show(select.value);
  }

  // ---- tables: by number where there is one, else by text; what is unknown comes last
  const order = new Intl.Collator("en", { numeric: true });
  const key = (row, column) => {
    const cell = row.cells[column];
    return { number: cell.dataset.value === undefined ? null : Number(cell.dataset.value), text: cell.textContent };
  };
  const compare = (a, b) => {
    if (a.number !== null && b.number !== null) return a.number - b.number;
    if (a.number !== null || b.number !== null) return null;
    return order.compare(a.text, b.text);
  };
  const sort = (table, column, down) => {
    for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
    table.tHead.rows[0].cells[column].setAttribute("aria-sort", down ? "descending" : "ascending");
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => row.cells.length > 1);
      rows.sort((one, other) => {
        const a = key(one, column), b = key(other, column), found = compare(a, b);
        return found === null ? (a.number === null) - (b.number === null) : down ? -found : found;
      });
      body.append(...rows);
    }
  };
  document.addEventListener("click", (event) => {
    const head = event.target.closest("table.sortable thead th");
    if (head) sort(head.closest("table"), head.cellIndex, head.getAttribute("aria-sort") === "ascending");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("table.sortable thead th")) event.target.click();
  });
  globalThis.tpslTables = {
    ready: () => { for (const head of all("table.sortable thead th")) head.tabIndex = 0; },
    sort,
  };
  globalThis.tpslTables.ready();
})();
