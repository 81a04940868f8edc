// Keeps a page fresh by its event stream: data-stream of <main> says where it is, data-kind what it is about.

import { refresh, tick } from "./fresh.js";
import { clearLog, goToLine, offerFollow, showRows } from "./log.js";

const main = document.getElementById("main");
const kind = main.dataset.kind;
const sign = document.getElementById("live");
let source = null;
let over = !main.dataset.stream;
let lastId = "";

function say(text, lost = false) {
  sign.hidden = !text;
  sign.classList.toggle("lost", lost);
  sign.lastElementChild.textContent = text;
}

function connect() {
  if (over || source) return;
  const url = new URL(main.dataset.stream, location.href);
  // A stream that we closed ourselves does not send Last-Event-ID when it is opened again.
  if (lastId) url.searchParams.set("after", lastId);
  source = new EventSource(url);
  source.onopen = () => { say("Live"); if (["runs", "workers", "schedules", "dead-letters"].includes(kind)) refresh(); };
  source.onerror = () => {
    say("Reconnecting …", true);
    if (source.readyState !== EventSource.CLOSED) return;
    // The server refused outright, as a proxy does whose backend is away: try on.
    disconnect();
    setTimeout(connect, 5000);
  };
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => {
      lastId = event.lastEventId || lastId;
      handle(JSON.parse(event.data));
    });
  }
}

function disconnect() {
  source?.close();
  source = null;
}

function finish() {
  over = true;
  disconnect();
  say("");
  return refresh();
}

const handlers = {
  changed: () => refresh(),
  run: (run) => (run.finished_at ? finish() : refresh()),
  job: (job) => { if (document.getElementById("head").dataset.version !== job.version) refresh(); },
  rows: showRows,
  attempt: () => { clearLog(); refresh(); },
  end: () => finish(),
};

// A browser keeps few connections per server open: a hidden tab must not hold one.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  else if (!over) { refresh(); connect(); }
});
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

if (kind === "job") {
  offerFollow();
  // Others come and go before a job that waits, of which its own stream says nothing.
  setInterval(() => { if (!document.hidden && document.querySelector("[data-waits]")) refresh(); }, 10000);
}
tick();
setInterval(tick, 1000);
if (!document.hidden) connect();

goToLine();
addEventListener("hashchange", goToLine);
