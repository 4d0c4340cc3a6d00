// What the console does beyond plain HTML: updates, shortcuts and the theme. Every page works without.
"use strict";

const STORED = { theme: "reservation-theme", paused: "reservation-paused" };

function stored(name) {
  try { return localStorage.getItem(STORED[name]); } catch { return null; }
}

function store(name, value) {
  try {
    if (value === null) localStorage.removeItem(STORED[name]);
    else localStorage.setItem(STORED[name], value);
  } catch { /* private windows may have no storage */ }
}

// The theme is set before the page is drawn, so that it never flashes.
function applyTheme() {
  const theme = stored("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
applyTheme();

document.addEventListener("DOMContentLoaded", () => {
  setUpTheme();
  setUpTimes(document);
  setUpKeys();
  setUpRefresh();
});

function setUpTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  const order = ["system", "light", "dark"];
  const show = () => {
    const theme = stored("theme") || "system";
    button.textContent = { system: "◐ Auto", light: "○ Light", dark: "● Dark" }[theme];
    button.setAttribute("aria-label", `Theme: ${theme}`);
  };
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(stored("theme") || "system") + 1) % order.length];
    store("theme", next === "system" ? null : next);
    applyTheme();
    show();
  });
  show();
  button.hidden = false;
}

// Times are written in UTC; the browser's own time is in the title.
function setUpTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    if (!time.title) time.title = `${new Date(time.dateTime).toLocaleString()} (this browser's time)`;
  }
}

function setUpKeys() {
  const help = document.getElementById("help");
  const open = document.getElementById("help-open");
  if (help && open) {
    open.hidden = false;
    open.addEventListener("click", () => help.showModal());
  }
  let afterG = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    if (document.querySelector("dialog[open]")) return;
    if (afterG && performance.now() - afterG < 1500) {
      afterG = 0;
      for (const link of document.querySelectorAll("a[data-key]")) {
        if (link.dataset.key === event.key) {
          event.preventDefault();
          link.click();
          return;
        }
      }
    }
    afterG = event.key === "g" ? performance.now() : 0;
    const press = { t: "theme", p: "refresh-pause", "?": "help-open" }[event.key];
    const pressed = press && document.getElementById(press);
    if (pressed && !pressed.hidden) {
      event.preventDefault();
      pressed.click();
    } else if (event.key === "/") {
      const search = document.querySelector("[data-search], input[type=search]");
      if (search) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    }
  });
}

// A page that has [data-refresh] is fetched again every few seconds, and each [data-live] replaced by
// the new one of the same id. Not while the tab is hidden, nor where the reader is at work in it.
function setUpRefresh() {
  const control = document.querySelector("[data-refresh]");
  if (!control) return;
  const interval = Number(control.dataset.refresh) * 1000;
  const state = document.getElementById("refresh-state");
  const button = document.getElementById("refresh-pause");
  let paused = stored("paused") === "yes";
  let failed = false;
  let timer = 0;
  let running = false;

  // Only changes are announced: a screen reader is not told of every update.
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  const show = () => {
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    if (paused) say("Updates are paused");
    else if (failed) say("The console does not answer; trying again");
    else say(`Updated every ${control.dataset.refresh} s`);
  };
  const atWork = (element) => {
    const active = document.activeElement;
    if (active && active !== document.body && element.contains(active)) return true;
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && selection.containsNode(element, true));
  };

  async function refresh() {
    if (running || paused || document.hidden) return;
    running = true;
    try {
      const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
      if (answer.type === "opaqueredirect") { // signed out meanwhile
        location.reload();
        return;
      }
      failed = !answer.ok;
      if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      failed = true;
    } finally {
      running = false;
    }
    show();
    document.documentElement.dataset.refreshed = String(Number(document.documentElement.dataset.refreshed || 0) + 1);
  }

  function replace(page) {
    for (const element of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(element.id);
      if (!fresh || atWork(element) || fresh.outerHTML === element.outerHTML) continue;
      for (const details of element.querySelectorAll("details[id][open]")) {
        const same = fresh.querySelector(`#${CSS.escape(details.id)}`);
        if (same) same.open = true;
      }
      setUpTimes(fresh);
      element.replaceWith(document.adoptNode(fresh));
    }
  }

  async function turn() {
    await refresh();
    timer = setTimeout(turn, interval);
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    store("paused", paused ? "yes" : null);
    show();
    if (!paused) refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    clearTimeout(timer);
    turn();
  });
  show();
  timer = setTimeout(turn, interval);
}
