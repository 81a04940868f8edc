// The log of a job: rows, which arrive as safe HTML, put where they belong, and the end kept in sight.

const MAX_ROWS = 10000;

const log = document.getElementById("log");
const follow = document.getElementById("follow");
let first = log ? Number(log.dataset.first) : 0; // index of the first row in the page
let waiting = [];
let scheduled = false;

export function showRows(update) {
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
  // Of very many rows at once the server sends only the newest.
  const leap = update.first > first + log.childElementCount;
  if (leap) {
    log.replaceChildren();
    first = update.first;
  }
  while (log.lastChild && first + log.childElementCount > Math.max(update.first, first)) log.lastElementChild.remove();
  const fragment = document.createDocumentFragment();
  update.rows.forEach((row, offset) => { if (update.first + offset >= first) fragment.append(element(row)); });
  log.append(fragment);
  if (leap) countHidden();
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
  countHidden();
}

function countHidden() {
  const note = document.getElementById("hidden-lines");
  const top = log.querySelector(".n");
  note.querySelector("span").textContent = top ? top.dataset.n - 1 : first;
  note.hidden = false;
}

export function clearLog() {
  flush();
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

// A reader who scrolls up wants to stay there; one who comes back to the end wants to follow again.
export function offerFollow() {
  follow.closest("label").hidden = false;
  follow.checked = !location.hash;
  follow.addEventListener("change", () => { if (follow.checked) toEnd(); });
  window.addEventListener("scroll", () => { follow.checked = atEnd(); }, { passive: true });
}

// A link to a line that is not shown: the server shows what is around it.
export function goToLine() {
  const asked = /^#L(\d+)$/.exec(location.hash);
  if (log && asked && !document.getElementById(asked[0].slice(1)) && !location.search.includes(`line=${asked[1]}`)) {
    location.replace(`${log.dataset.base}${asked[1]}${location.hash}`);
  }
}
