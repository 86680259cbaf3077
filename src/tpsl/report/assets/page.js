"use strict";
// Sorts tables: by number where there is one, else by text; what is unknown comes last. No number is made here.
const sortTable = (table, column, down) => {
  for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  const number = (row) => row.cells[column].dataset.value;
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [one, other] = [number(a), number(b)];
    if ((one === undefined) !== (other === undefined)) return one === undefined ? 1 : -1;
    const found = one === undefined
      ? a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true })
      : one - other;
    return down ? -found : found;
  });
  table.tBodies[0].append(...rows);
};
const letSort = () => { for (const head of document.querySelectorAll("table.sortable thead th")) head.tabIndex = 0; };
for (const kind of ["click", "keydown"]) {
  document.addEventListener(kind, (event) => {
    const head = event.target.closest("table.sortable thead th");
    if (!head || (event.key ?? "Enter") !== "Enter") return;
    sortTable(head.closest("table"), head.cellIndex, head.getAttribute("aria-sort") === "ascending");
  });
}
letSort();
