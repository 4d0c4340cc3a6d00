// What the console does beyond plain HTML: updates, and times as the browser has them.
"use strict";

const PAUSED = "reservation-paused";
let paused = sessionStorage.getItem(PAUSED) === "yes";

// Times are written in UTC; the browser's own time is in the title.
function setUpTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    if (!time.title) time.title = `${new Date(time.dateTime).toLocaleString()} (this browser's time)`;
  }
}

// A page that has [data-refresh] is fetched again every few seconds, and each [data-live] replaced by
// the new one of the same id. Not while the tab is hidden, nor where the reader is at work in it.
function setUpRefresh(control) {
  const state = document.getElementById("refresh-state");
  const button = document.getElementById("refresh-pause");
  let failed = false;

  // Only changes are announced: a screen reader is not told of every update.
  const show = () => {
    let text = `Updated every ${control.dataset.refresh} s`;
    if (paused) text = "Updates are paused";
    else if (failed) text = "The console does not answer; trying again";
    if (state.textContent !== text) state.textContent = text;
    button.textContent = paused ? "Resume updates" : "Pause updates";
    button.setAttribute("aria-pressed", String(paused));
  };
  const atWork = (element) => {
    const active = document.activeElement;
    if (active && active !== document.body && element.contains(active)) return true;
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && selection.containsNode(element, true));
  };

  function replace(page) {
    for (const element of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(element.id);
      if (!fresh || atWork(element) || fresh.outerHTML === element.outerHTML) continue;
      setUpTimes(fresh);
      element.replaceWith(document.adoptNode(fresh));
    }
  }

  async function refresh() {
    if (paused || document.hidden) return;
    try {
      const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
      if (answer.type === "opaqueredirect") return location.reload(); // signed out meanwhile
      failed = !answer.ok;
      if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      failed = true;
    }
    show();
    const done = Number(document.documentElement.dataset.refreshed || 0);
    document.documentElement.dataset.refreshed = String(done + 1);
  }

  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem(PAUSED, paused ? "yes" : "no");
    show();
    refresh();
  });
  document.addEventListener("visibilitychange", refresh);
  const turn = async () => {
    await refresh();
    setTimeout(turn, Number(control.dataset.refresh) * 1000);
  };
  setTimeout(turn, Number(control.dataset.refresh) * 1000);
  button.hidden = false;
  show();
}

setUpTimes(document);
const control = document.querySelector("[data-refresh]");
if (control) setUpRefresh(control);
