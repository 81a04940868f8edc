// Keeps the pages fresh. What is shown is always made by the server: this file fetches the page again and swaps the
// parts marked data-live, and puts rows of the log, which arrive as safe HTML, where they belong.

const MAX_ROWS = 10000;
const FINAL = new Set(["succeeded", "failed", "errored", "cancelled", "timed_out", "skipped"]);

const main = document.getElementById("main");
const kind = main.dataset.kind;

// -- times, as in words.py ---------------------------------------------------------------------------------------

function ago(seconds) {
  if (seconds < 45) return "just now";
  if (seconds >= 86400) return `${Math.floor(seconds / 86400)} d ago`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.max(1, Math.floor(seconds / 60))} min ago`;
}

function duration(seconds) {
  const whole = Math.floor(Math.max(0, seconds));
  if (whole < 60) return seconds > 0 && seconds < 9.95 ? `${seconds.toFixed(1)} s` : `${whole} s`;
  const minutes = Math.floor(whole / 60), hours = Math.floor(whole / 3600), days = Math.floor(whole / 86400);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${days} d ${hours % 24} h`;
}

function tick() {
  const now = Date.now();
  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  for (const time of document.querySelectorAll("time[title]")) say(time, ago((now - Date.parse(time.dateTime)) / 1000));
  for (const span of document.querySelectorAll("[data-since]")) {
    say(span, duration((now - Date.parse(span.dataset.since)) / 1000));
  }
}
setInterval(tick, 1000);

// -- parts of the page that change -------------------------------------------------------------------------------

let refreshing = null;
let again = false;

async function refresh() {
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

// -- the stream --------------------------------------------------------------------------------------------------

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
  // A stream that we closed ourselves does not send Last-Event-ID when it is opened anew.
  if (lastId) url.searchParams.set("after", lastId);
  source = new EventSource(url);
  source.onopen = () => { say("Live"); if (kind === "runs") refresh(); };
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
  run: (run) => (FINAL.has(run.state) ? finish() : refresh()),
  job: (job) => { if (document.getElementById("head").dataset.version !== job.version) refresh(); },
  rows: (update) => queue(update),
  attempt: () => { flush(); clearLog(); refresh(); },
  end: () => finish(),
};

// A browser keeps few connections per server open: a tab that nobody sees must not hold one.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  else if (!over) { refresh(); connect(); }
});
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

// -- the log -----------------------------------------------------------------------------------------------------

const log = document.getElementById("log");
const follow = document.getElementById("follow");
let first = log ? Number(log.dataset.first) : 0; // index of the first row in the page
let waiting = [];
let scheduled = false;

function queue(update) {
  waiting.push(update);
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(flush);
}

function flush() {
  scheduled = false;
  const updates = waiting;
  waiting = [];
  if (!updates.length) return;
  for (const update of updates) apply(update);
  trim();
  if (follow.checked) toEnd();
}

function apply(update) {
  while (log.lastChild && first + log.childElementCount > Math.max(update.first, first)) log.lastElementChild.remove();
  const fragment = document.createDocumentFragment();
  update.rows.forEach((row, offset) => { if (update.first + offset >= first) fragment.append(element(row)); });
  log.append(fragment);
}

function element(row) {
  const line = document.createElement("div");
  line.className = row.n === null ? "row remark" : "row";
  if (row.n !== null) {
    line.id = `L${row.n}`;
    const number = document.createElement("a");
    number.className = "n";
    number.href = `#L${row.n}`;
    number.dataset.n = row.n;
    number.setAttribute("aria-label", `Line ${row.n}`);
    line.append(number);
  }
  const text = document.createElement("span");
  text.className = "t";
  text.innerHTML = row.html; // made safe by ansi.py
  line.append(text);
  return line;
}

function trim() {
  let extra = log.childElementCount - MAX_ROWS;
  if (extra <= 0) return;
  for (; extra > 0; extra--, first++) log.firstElementChild.remove();
  const note = document.getElementById("hidden-lines");
  const top = log.querySelector(".n");
  note.querySelector("span").textContent = top ? top.dataset.n - 1 : first;
  note.hidden = false;
}

function clearLog() {
  log.replaceChildren();
  first = 0;
  document.getElementById("hidden-lines").hidden = true;
}

function atEnd() {
  return log.getBoundingClientRect().bottom <= window.innerHeight + 40;
}

function toEnd() {
  window.scrollTo(0, log.getBoundingClientRect().bottom + window.scrollY - window.innerHeight + 24);
}

if (log && !over) {
  follow.closest("label").hidden = false;
  follow.checked = !location.hash;
  follow.addEventListener("change", () => { if (follow.checked) toEnd(); });
  // Whoever scrolls up wants to read; whoever comes back to the end wants to go on.
  window.addEventListener("scroll", () => { follow.checked = atEnd(); }, { passive: true });
}

tick();
if (!document.hidden) connect();
