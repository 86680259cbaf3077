// Asks every second whether the list has changed, and filters it by words. The list itself is made in Python.
const EVERY = 1000;  // milliseconds between two questions
const byId = (id) => document.getElementById(id);
const list = byId("list");
let version = list.dataset.version;

const filter = () => {
  const words = byId("query").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...document.querySelectorAll("#runs tbody tr")];
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  for (const part of document.querySelectorAll("#runs section")) part.hidden = !part.querySelector("tbody tr:not([hidden])");
  const shown = rows.filter((row) => !row.hidden).length;
  byId("found").textContent = shown === rows.length ? "" : `${shown} of ${rows.length} runs`;
};

// What is drawn anew keeps its order, its filter and the keyboard's place.
const show = (content) => {
  const tables = () => [...document.querySelectorAll("#runs table")];
  const heads = tables().map((table) => table.querySelector("[aria-sort]")), focused = document.activeElement?.href;
  list.innerHTML = content;
  letSort();
  tables().forEach((table, at) => {
    if (heads[at]) sortTable(table, heads[at].cellIndex, heads[at].getAttribute("aria-sort") === "descending");
  });
  filter();
  if (focused) [...list.querySelectorAll("a")].find((link) => link.href === focused)?.focus({ preventScroll: true });
};
const say = (text) => { if (byId("live").textContent !== text) byId("live").textContent = text; };
const look = async () => {
  try {
    const answer = await fetch("list", { headers: { "If-None-Match": version }, cache: "no-store" });
    if (answer.ok) {
      show(await answer.text());
      version = answer.headers.get("ETag");
    }
    say(answer.ok || answer.status === 304 ? "live" : "not live: tpsl ui was started again, at another address");
  } catch {
    say("not live: tpsl ui has ended");
  }
  setTimeout(look, EVERY);
};

byId("query").addEventListener("input", filter);
look();
