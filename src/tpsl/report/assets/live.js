"use strict";
// Keeps the page up to date: asks every second whether anything has changed, and shows what has.
(() => {
  const EVERY = 1000;  // milliseconds
  let version = document.currentScript.dataset.version;
  const hasReport = document.getElementById("data") !== null;  // a page without runs has none
  const bar = document.querySelector(".bar");
  const status = document.createElement("span");
  status.id = "live";
  status.className = "small";
  status.setAttribute("role", "status");
  bar.querySelector(".mark").after(status);
  bar.style.flexWrap = "wrap";  // on a phone the bar has two lines

  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  if (hasReport) {
    // The report of one run, to keep or to send: the address is made when it is used, of the run that is shown then.
    const link = document.createElement("a");
    link.id = "own-page";
    link.className = "small";
    link.textContent = "Page of this run";
    link.target = "_blank";
    link.rel = "noopener";
    const aim = () => { link.href = `runs/${encodeURIComponent(document.getElementById("run").selectedOptions[0]?.textContent ?? "")}`; };
    for (const event of ["pointerenter", "pointerdown", "focus", "click"]) link.addEventListener(event, aim);
    aim();
    status.after(link);
    const footer = document.querySelector("footer p");
    footer.textContent = footer.textContent.replace("This page is complete in itself and loads nothing.",
      "This page follows a folder on this machine and changes nothing in it.");
  }

  const show = (data) => {
    const focused = document.activeElement;
    const picked = focused?.classList.contains("pick") ? focused.textContent : null;
    const top = scrollY;
    tpslReport.show(data);
    // The table of runs is new: the keyboard goes on where it was.
    if (picked !== null) [...document.querySelectorAll(".pick")].find((button) => button.textContent === picked)?.focus({ preventScroll: true });
    scrollTo(0, top);
  };

  const look = async () => {
    try {
      const answer = await fetch("data", { headers: { "If-None-Match": version }, cache: "no-store" });
      if (answer.ok) {
        const data = await answer.json();
        if (hasReport !== data.runs.length > 0) { location.reload(); return; }
        if (hasReport) show(data);
        version = answer.headers.get("ETag");
        say("live");
      } else say(answer.status === 304 ? "live" : "not live: tpsl ui was started anew, at another address");
    } catch {
      say("not live: tpsl ui has ended");
    }
    setTimeout(look, EVERY);
  };
  look();
})();
