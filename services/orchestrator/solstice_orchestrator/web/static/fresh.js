// The parts of a page marked data-live: fetched again and swapped, so that only the server makes what is shown.

import { ago, duration } from "./times.js";

let refreshing = null;
let again = false;

export async function refresh() {
  if (refreshing) { again = true; return refreshing; }
  refreshing = (async () => {
    try {
      do {
        again = false;
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (!answer.ok) return;
        swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      } while (again);
    } catch {
      // The connection is gone; the stream says so and asks again when it is back.
    } finally {
      refreshing = null;
    }
  })();
  return refreshing;
}

function swap(fresh) {
  const focused = document.activeElement;
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    if (!next || next.innerHTML === part.innerHTML) continue;
    const had = part.contains(focused) ? focused : null;
    part.innerHTML = next.innerHTML;
    Object.assign(part.dataset, next.dataset);
    if (had) refocus(part, had);
  }
  document.title = fresh.title;
  tick();
}

function refocus(part, had) {
  const same = had.id
    ? document.getElementById(had.id)
    : [...part.querySelectorAll("a, button")].find((one) => one.textContent === had.textContent);
  same?.focus({ preventScroll: true });
}

// Times that pass while the page is open.
export function tick() {
  const now = Date.now();
  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  for (const time of document.querySelectorAll("time[title]")) say(time, ago((now - Date.parse(time.dateTime)) / 1000));
  for (const span of document.querySelectorAll("[data-since]")) {
    say(span, duration((now - Date.parse(span.dataset.since)) / 1000));
  }
}
