"use strict";
(() => {
  const root = document.documentElement;

  // Theme: the reader's system decides until the button is used; the choice is kept where the browser allows it.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = (write) => {
    try {
      return write ? localStorage.setItem("tpsl-theme", write) : localStorage.getItem("tpsl-theme");
    } catch {
      return null;
    }
  };
  const current = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
  const other = () => (current() === "dark" ? "light" : "dark");
  const remembered = stored();
  if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;

  const setUpTheme = () => {
    const button = document.getElementById("theme");
    const label = () => {
      button.textContent = other() === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", `${button.textContent} theme`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = other();
      stored(root.dataset.theme);
      label();
    });
    system.addEventListener("change", label);
    label();
    button.hidden = false;
  };

  // Tooltips: on hover and on focus; Escape closes; the pointer may move onto the tooltip.
  const setUpTooltips = () => {
    const tip = document.getElementById("tip");
    let closing;
    const open = (target, x) => {
      clearTimeout(closing);
      tip.textContent = target.dataset.tip;
      tip.hidden = false;
      const place = target.getBoundingClientRect();
      const size = tip.getBoundingClientRect();
      const middle = x ?? place.left + place.width / 2;
      const left = Math.min(Math.max(8, middle - size.width / 2), root.clientWidth - size.width - 8);
      const above = place.top - size.height - 6;
      tip.style.left = `${left + scrollX}px`;
      tip.style.top = `${(above < 4 ? place.bottom + 6 : above) + scrollY}px`;
    };
    const close = () => {
      tip.hidden = true;
    };
    const closeSoon = () => {
      clearTimeout(closing);
      closing = setTimeout(close, 150);
    };
    const owner = (event) => event.target.closest?.("[data-tip]");
    document.addEventListener("pointerover", (event) => {
      const target = owner(event);
      if (target) open(target, event.clientX);
      else if (tip.contains(event.target)) clearTimeout(closing);
    });
    document.addEventListener("pointerout", (event) => {
      if (owner(event) || tip.contains(event.target)) closeSoon();
    });
    document.addEventListener("focusin", (event) => {
      const target = owner(event);
      if (target) open(target);
    });
    document.addEventListener("focusout", closeSoon);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
    });
  };

  document.addEventListener("DOMContentLoaded", () => {
    setUpTheme();
    setUpTooltips();
  });
})();
