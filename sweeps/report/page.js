"use strict";
// What needs a pointer or a key: figures of the mark that is pointed at, series that come and go, tables that sort.
const tip = document.getElementById("tip"), spoken = document.getElementById("spoken");
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
let near = null;

function labelOf(mark) {
  const { x, y } = mark.ownerSVGElement.dataset, [across, up, says] = mark.dataset.t.split("|");
  return [mark.parentNode.dataset.h, `${x}: ${across}`, up && `${y}: ${up}`, says].filter(Boolean).join("\n");
}

function point(mark) {
  if (near) near.classList.remove("near");
  near = mark;
  tip.hidden = !mark;
  if (!mark) return;
  mark.classList.add("near");
  tip.textContent = labelOf(mark);
  const at = mark.getBoundingClientRect(), x = at.left + at.width / 2, y = at.top + at.height / 2;
  const left = x + 14 + tip.offsetWidth > innerWidth ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, Math.min(y - tip.offsetHeight / 2, innerHeight - tip.offsetHeight - 4)) + "px";
}

const marks = plot => all(".series:not(.away) .mark", plot);

for (const plot of all(".plot")) {
  plot.addEventListener("pointermove", event => {
    let best = null, least = 30 * 30;
    for (const mark of marks(plot)) {
      const at = mark.getBoundingClientRect();
      const dx = at.left + at.width / 2 - event.clientX, dy = at.top + at.height / 2 - event.clientY;
      const far = dx * dx + dy * dy;
      if (far < least) { least = far; best = mark; }
    }
    if (best !== near) point(best);
  });
  plot.addEventListener("pointerleave", () => point(null));
  plot.addEventListener("blur", () => point(null));
  plot.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], turn = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return point(null);
    if (!step && !turn) return;
    event.preventDefault();
    const groups = all(".series:not(.away)", plot).map(group => all(".mark", group)).filter(group => group.length);
    if (!groups.length) return;
    let which = groups.findIndex(group => group.includes(near)), at = which < 0 ? -1 : groups[which].indexOf(near);
    if (which < 0) { which = 0; at = step < 0 ? groups[0].length : -1; }
    if (turn) { which = (which + turn + groups.length) % groups.length; at = Math.max(0, at); }
    at = Math.min(Math.max(at + (step || 0), 0), groups[which].length - 1);
    point(groups[which][at]);
    spoken.textContent = labelOf(near);
  });
}

for (const button of all(".legend button")) {
  button.addEventListener("click", () => {
    const away = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", !away);
    for (const series of all(`.series[data-s="${button.dataset.s}"]`, button.closest("figure")))
      series.classList.toggle("away", away);
  });
}

const order = new Intl.Collator(undefined, { numeric: true }).compare;
const value = (row, n) => row.cells[n].dataset.v ?? row.cells[n].textContent;
const number = text => { const found = parseFloat(text.replace(/,/g, "")); return Number.isNaN(found) ? -Infinity : found; };

for (const table of all("table.sortable")) {
  const body = table.tBodies[0], few = +table.dataset.few, rows = [...body.rows];
  const box = table.closest("figure"), field = box.querySelector("input"), more = box.querySelector(".more"), count = box.querySelector("output");
  let shown = rows, isAll = false;
  const texts = new Map();
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length && !texts.size) for (const row of rows) texts.set(row, row.textContent.toLowerCase());
    let fit = 0;
    for (const row of shown) {
      const fits = words.every(word => texts.get(row).includes(word));
      row.hidden = !fits || (!isAll && fit >= few);
      fit += fits;
    }
    more.hidden = isAll || fit <= few;
    count.textContent = words.length ? `${fit} of ${rows.length} rows` : `${rows.length} rows`;
    if (!more.hidden) { more.textContent = `Show all ${fit}`; count.textContent += `, the first ${few} shown`; }
  };
  for (const button of all("th button", table)) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), n = head.cellIndex, isNumber = head.classList.contains("n");
      const down = head.getAttribute("aria-sort") === (isNumber ? null : "ascending") || (isNumber && head.getAttribute("aria-sort") !== "descending");
      for (const other of all("th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = rows.map(row => [isNumber ? number(value(row, n)) : value(row, n), row]);
      keyed.sort((a, b) => (isNumber ? a[0] - b[0] : order(a[0], b[0])) * (down ? -1 : 1));
      shown = keyed.map(pair => pair[1]);
      body.append(...shown);
      show();
    });
  }
  field.addEventListener("input", show);
  more.addEventListener("click", () => { isAll = true; show(); });
  show();
}

for (const button of all(".copy"))
  button.addEventListener("click", async () => {
    const pre = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(pre);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

// where one is on the page
const links = new Map(all(".bar nav a").map(link => [link.getAttribute("href").slice(1), link]));
const watch = new IntersectionObserver(seen => {
  for (const { target, isIntersecting } of seen)
    if (isIntersecting) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(target.id)?.setAttribute("aria-current", "true");
    }
}, { rootMargin: "-20% 0px -70% 0px" });
for (const section of all("section, header")) watch.observe(section);
