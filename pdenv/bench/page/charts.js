// Draws the charts of the page at the width there is, from the JSON in #data. Everything else is there without it.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const report = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");

function svg(tag, attributes, parent, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const shortened = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : `${+value.toPrecision(3)}`);

// ---- axes ------------------------------------------------------------------------------------------------

function linear(low, high, start, end) {
  const place = (value) => start + ((value - low) / (high - low)) * (end - start);
  const back = (at) => low + ((at - start) / (end - start)) * (high - low);
  return { place, back, low, high, ticks: (room) => roundSteps(low, high, room) };
}

function logarithmic(low, high, start, end) {
  const inner = linear(Math.log(low), Math.log(high), start, end);
  return {
    place: (value) => inner.place(Math.log(Math.max(value, low / 10))),
    back: (at) => Math.exp(inner.back(at)),
    low, high,
    ticks: (room) => roundPowers(low, high, room),
  };
}

function roundSteps(low, high, room) {
  const rough = (high - low) / Math.max(room, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) found.push(+(k * step).toPrecision(6));
  return found;
}

function roundPowers(low, high, room) {
  const within = (steps) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of steps) found.push(+(step * 10 ** power).toPrecision(6));
    return found.filter((value) => value >= low && value <= high);
  };
  const choices = [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]].map(within);
  return choices.find((found) => found.length <= room) ?? choices[3].filter((_, i) => i % 2 === 0);
}

// ---- the frame of a chart --------------------------------------------------------------------------------

function frame(canvas, margins) {
  canvas.replaceChildren();
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, canvas);
  const box = { left: margins.left, right: width - margins.right, top: margins.top, bottom: height - margins.bottom };
  const id = `clip-${(frame.count = (frame.count ?? 0) + 1)}`;
  const clip = svg("clipPath", { id }, svg("defs", {}, root));
  svg("rect", { x: box.left, y: box.top - 2, width: box.right - box.left, height: box.bottom - box.top + 4 }, clip);
  return { root, box, clip: `url(#${id})`, canvas };
}

function axes(view, x, y, names) {
  const { root, box } = view;
  for (const value of x.ticks((box.right - box.left) / 55)) {
    const at = x.place(value);
    svg("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, stroke: "#e8ecf0" }, root);
    svg("text", { x: at, y: box.bottom + 16, "text-anchor": "middle" }, root, shortened(value));
  }
  for (const value of y.ticks((box.bottom - box.top) / 45)) {
    const at = y.place(value);
    svg("line", { x1: box.left, x2: box.right, y1: at, y2: at, stroke: "#e8ecf0" }, root);
    svg("text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, root, shortened(value));
  }
  svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle" }, root, names.x);
  if (names.y) svg("text", { x: 2, y: box.top - 11 }, root, names.y);
}

function outline(points, x, y) {
  let path = "", pen = "M";
  for (const [a, b] of points) {
    if (a === null || b === null) { pen = "M"; continue; }
    path += `${pen}${x.place(a).toFixed(1)} ${y.place(b).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

// ---- curves ----------------------------------------------------------------------------------------------

function curvesOf(scenario, kind, field) {
  const named = scenario.policies;
  if (kind === "cdf") {
    const shares = report.shares.map((share) => 100 * share);
    return scenario[field].curves.map((times, i) => times && { i, policy: named[i], x: times, y: shares });
  }
  return scenario[field].map((c, i) => c && { i, policy: named[i], x: scenario.time, y: c.mean, low: c.low, high: c.high });
}

function drawCurves(figure) {
  const { scenario, kind, field, canvas } = figure;
  const curves = curvesOf(scenario, kind, field).filter(Boolean);
  if (!curves.length) return empty(canvas, "No policy has a sample here.");
  const view = frame(canvas, { left: 40, right: 12, top: 26, bottom: 38 });
  const { box } = view;
  const x = kind === "cdf" ? timeAxis(curves, scenario[field].limit, box) : linear(0, scenario.time.at(-1), box.left, box.right);
  const tallest = Math.max(100, ...curves.flatMap((c) => (c.high ?? c.y).filter((v) => v !== null)));
  const y = linear(0, kind === "cdf" ? 100 : tallest, box.bottom, box.top);
  axes(view, x, y, { x: kind === "cdf" ? "seconds (log scale)" : "seconds since the start", y: kind === "cdf" ? "requests, %" : "%" });
  if (kind === "cdf" && scenario[field].limit) limitLine(view, x, scenario[field].limit);
  const lines = svg("g", { "clip-path": view.clip }, view.root);
  const shown = curves.filter((c) => figure.shown.has(c.i));
  for (const c of curves.filter((one) => !figure.shown.has(one.i)))
    svg("path", { d: outline(pairs(c), x, y), class: "faint", fill: "none", stroke: "#dfe3e8", "stroke-width": 1.2 }, lines);
  const wideFirst = [...shown].sort((a, b) => b.policy.width - a.policy.width);  // a narrow line on a wide one is seen
  for (const c of wideFirst) drawCurve(c, lines, x, y, shown.length <= 3);
  figure.inspect = { view, x, y, shown, kind };
}

const pairs = (c) => c.x.slice(0, c.y.length).map((value, k) => [value, c.y[k]]);

function drawCurve(c, lines, x, y, banded) {
  if (c.low) {
    const up = c.x.slice(0, c.high.length).map((value, k) => [value, c.high[k]]);
    const down = c.x.slice(0, c.low.length).map((value, k) => [value, c.low[k]]).reverse();
    const band = { d: `${outline([...up, ...down], x, y)}Z`, fill: c.policy.colour, "fill-opacity": 0.14, class: "band" };
    c.band = svg("path", band, lines);
    if (!banded) c.band.style.display = "none";
  }
  const stroke = { stroke: c.policy.colour, "stroke-width": c.policy.width, "stroke-dasharray": c.policy.dashes };
  c.line = svg("path", { d: outline(pairs(c), x, y), fill: "none", class: "curve", ...stroke }, lines);
}

function timeAxis(curves, limit, box) {
  const low = Math.min(...curves.map((c) => Math.max(c.x[2], 1e-4)));
  const high = Math.max(...curves.map((c) => c.x.at(-1)), limit ? limit * 1.15 : 0);
  return logarithmic(low, Math.max(high, low * 1.5) * 1.05, box.left, box.right);
}

function limitLine({ root, box }, x, limit) {
  const at = x.place(limit);
  svg("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, stroke: "#444", "stroke-dasharray": "2 3" }, root);
  const rightHalf = at > (box.left + box.right) / 2;
  svg("text", { x: at + (rightHalf ? -4 : 4), y: box.top - 11, "text-anchor": rightHalf ? "end" : "start" }, root, `limit ${shortened(limit)} s`);
}

// ---- goodput against cost --------------------------------------------------------------------------------

function drawScatter(figure) {
  const { scenario, canvas } = figure;
  const points = scenario.points.map((p, i) => ({ p, i, policy: scenario.policies[i] })).filter(({ p }) => p[0] !== null && p[3] !== null);
  if (!points.length) return empty(canvas, "No policy has a goodput here.");
  const view = frame(canvas, { left: 48, right: 20, top: 28, bottom: 38 });
  const { box } = view;
  const costs = points.flatMap(({ p }) => p.slice(0, 3)).filter((v) => v !== null);
  const rates = points.flatMap(({ p }) => p.slice(3)).filter((v) => v !== null);
  const x = around(costs, box.left, box.right, true), y = around(rates, box.bottom, box.top, false);
  axes(view, x, y, { x: x.log ? "mean cost (log scale)" : "mean cost", y: "goodput, requests/s" });
  const marks = svg("g", { "clip-path": view.clip }, view.root);
  const order = [...points].sort((a, b) => figure.shown.has(a.i) - figure.shown.has(b.i));
  for (const one of order) drawPoint(one, marks, x, y, figure.shown.has(one.i));
  nameApart(view, points.filter(({ i }) => figure.shown.has(i)), x, y);
  figure.inspect = { view, x, y, points, kind: "scatter" };
}

function around(values, start, end, mayLog) {
  const low = Math.min(...values), high = Math.max(...values);
  if (mayLog && low > 0 && high > 5 * low) {
    const room = (high / low) ** 0.06;
    return { ...logarithmic(low / room, high * room, start, end), log: true };
  }
  const room = 0.08 * (high - low) || Math.abs(high) * 0.1 || 1;
  return linear(low >= 0 ? Math.max(low - room, 0) : low - room, high + room, start, end);
}

function drawPoint({ p, policy }, marks, x, y, shown) {
  const colour = shown ? policy.colour : "#c9d0d7";
  const line = { stroke: colour, "stroke-width": 1.3 };
  if (p[1] !== null) svg("line", { x1: x.place(p[1]), x2: x.place(p[2]), y1: y.place(p[3]), y2: y.place(p[3]), ...line }, marks);
  if (p[4] !== null) svg("line", { x1: x.place(p[0]), x2: x.place(p[0]), y1: y.place(p[4]), y2: y.place(p[5]), ...line }, marks);
  svg("circle", { cx: x.place(p[0]), cy: y.place(p[3]), r: 5, fill: colour, stroke: "#fff", class: shown ? "point" : "point faint" }, marks);
}

// Names beside their points where there is room; the pointer tells the others.
function nameApart({ root, box }, points, x, y) {
  const taken = points.flatMap(({ p }) => {
    const cx = x.place(p[0]), cy = y.place(p[3]);
    const spots = [{ x: cx - 6, y: cy - 6, width: 12, height: 12 }];
    if (p[1] !== null) spots.push({ x: x.place(p[1]), y: cy - 1, width: x.place(p[2]) - x.place(p[1]), height: 2 });
    return spots;
  });
  const meets = (a) => taken.some((b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height);
  for (const { p, policy } of points) {
    const label = svg("text", { class: "label", "font-size": 12 }, root, policy.name);
    const width = label.getComputedTextLength(), height = 14, cx = x.place(p[0]), cy = y.place(p[3]);
    const places = [[8, -7], [-8 - width, -7], [-width / 2, -23], [-width / 2, 9], [6, -22], [6, 8], [-6 - width, -22], [-6 - width, 8]];
    const spot = places.map(([dx, dy]) => ({ x: cx + dx, y: cy + dy, width, height }))
      .find((a) => a.x >= box.left && a.x + width <= box.right && a.y >= box.top - 6 && a.y + height <= box.bottom && !meets(a));
    if (!spot) { label.remove(); continue; }
    label.setAttribute("x", spot.x);
    label.setAttribute("y", spot.y + 11);
    taken.push(spot);
  }
}

function empty(canvas, text) {
  const said = document.createElement("p");
  said.className = "empty";
  said.textContent = text;
  canvas.replaceChildren(said);
}

// ---- values under the pointer, or under the arrow keys ---------------------------------------------------

function showTip(rows, left, top) {
  tip.replaceChildren();
  for (const row of rows) {
    const line = document.createElement("div");
    if (row.policy) {
      const swatch = svg("svg", { width: 22, height: 10 }, line);
      const { colour, dashes, width } = row.policy;
      svg("line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke: colour, "stroke-width": width, "stroke-dasharray": dashes }, swatch);
    }
    line.append(row.text);
    tip.append(line);
  }
  tip.hidden = false;
  const page = document.documentElement, width = tip.offsetWidth;
  tip.style.left = `${Math.max(4, Math.min(left + 14, page.clientWidth - width - 4)) + window.scrollX}px`;
  const below = top + 14 + tip.offsetHeight < window.innerHeight;
  tip.style.top = `${(below ? top + 14 : Math.max(4, top - 14 - tip.offsetHeight)) + window.scrollY}px`;
}

function hideTip() {
  tip.hidden = true;
}

function valueAt(xs, ys, value) {
  const last = Math.min(xs.length, ys.length) - 1;
  if (value < xs[0]) return null;
  if (value > xs[last]) return undefined;
  let k = 0;
  while (k < last - 1 && xs[k + 1] < value) k++;
  const span = xs[k + 1] - xs[k];
  return span > 0 ? ys[k] + ((value - xs[k]) / span) * (ys[k + 1] - ys[k]) : ys[k + 1];
}

function inspect(figure, at, pointerY, left, top) {
  const { view, x, y, kind } = figure.inspect;
  view.cross?.remove();
  if (kind === "scatter") return inspectPoints(figure, at, pointerY, left, top);
  const { box } = view;
  at = Math.min(Math.max(at, box.left), box.right);
  view.cross = svg("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, stroke: "#888" }, view.root);
  const value = x.back(at);
  const rows = figure.inspect.shown.map((c) => {
    const found = valueAt(c.x, c.y, value);
    return { c, policy: c.policy, value: found ?? (kind === "cdf" ? (found === null ? 0 : 100) : null) };
  }).filter((row) => row.value !== null).sort((a, b) => b.value - a.value);
  nearest(figure, rows, y, pointerY);
  const head = kind === "cdf" ? `at most ${shortened(value)} s` : `at ${shortened(value)} s`;
  const lines = rows.slice(0, 12).map(({ policy, value: v }) => ({ policy, text: `${policy.name}: ${v.toFixed(1)} %` }));
  if (rows.length > 12) lines.push({ text: `and ${rows.length - 12} more` });
  showTip([{ text: head }, ...lines], left, top);
}

// The band and a wider line for the curve nearest to the pointer.
function nearest(figure, rows, y, pointerY) {
  const far = (row) => Math.abs(y.place(row.value) - pointerY);
  const close = pointerY === null ? null : rows.reduce((best, row) => (!best || far(row) < far(best) ? row : best), null);
  for (const c of figure.inspect.shown) {
    const chosen = close?.c === c;
    c.line.setAttribute("stroke-width", c.policy.width + (chosen ? 1.5 : 0));
    if (c.band && figure.inspect.shown.length > 3) c.band.style.display = chosen ? "" : "none";
  }
}

function inspectPoints(figure, at, pointerY, left, top) {
  const { view, x, y, points } = figure.inspect;
  const ranked = [...points].sort((a, b) => a.p[0] - b.p[0]);
  const far = ({ p }) => Math.hypot(x.place(p[0]) - at, pointerY === null ? 0 : y.place(p[3]) - pointerY);
  const one = ranked.reduce((best, row) => (far(row) < far(best) ? row : best));
  view.cross = svg("circle", { cx: x.place(one.p[0]), cy: y.place(one.p[3]), r: 8, fill: "none", stroke: "#444" }, view.root);
  const text = `${one.policy.name}: cost ${shortened(one.p[0])}, goodput ${shortened(one.p[3])}/s`;
  showTip([{ policy: one.policy, text }], left, top);
}

function watch(figure) {
  const { canvas } = figure;
  let key = null;
  const leave = () => {
    hideTip();
    figure.inspect?.view.cross?.remove();
    key = null;
  };
  canvas.addEventListener("pointermove", (event) => {
    if (!figure.inspect) return;
    const area = canvas.getBoundingClientRect();
    inspect(figure, event.clientX - area.left, event.clientY - area.top, event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    if (!figure.inspect || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    event.preventDefault();
    const { box } = figure.inspect.view, area = canvas.getBoundingClientRect();
    key ??= (box.left + box.right) / 2;
    key = Math.min(Math.max(key + (event.key === "ArrowLeft" ? -1 : 1) * (box.right - box.left) / 40, box.left), box.right);
    inspect(figure, key, null, area.left + key, area.top + 20);
  });
}

// ---- putting it together ---------------------------------------------------------------------------------

const figures = [...document.querySelectorAll("figure[data-kind]")].map((node) => {
  const scenario = report.scenarios[+node.dataset.scenario];
  scenario.chosen ??= new Set(scenario.shown);
  const canvas = node.querySelector(".canvas");
  return { node, canvas, scenario, kind: node.dataset.kind, field: node.dataset.field, shown: scenario.chosen, width: 0 };
});

function draw(figure) {
  figure.inspect = null;
  figure.width = figure.canvas.clientWidth;
  (figure.kind === "scatter" ? drawScatter : drawCurves)(figure);
  figure.node.dataset.drawn = "yes";
}

// Drawn while nothing else is to do, so that a page of many charts opens at once.
const waiting = new Set();
const whenIdle = (work) => (window.requestIdleCallback ?? setTimeout)(work, { timeout: 300 });
function drawSoon(some) {
  if (!waiting.size) whenIdle(drawWaiting);
  for (const figure of some) waiting.add(figure);
}
function drawWaiting(deadline) {
  for (const figure of waiting) {
    waiting.delete(figure);
    draw(figure);
    if (!(deadline?.timeRemaining() > 4)) break;
  }
  if (waiting.size) whenIdle(drawWaiting);
}

const byCanvas = new Map(figures.map((figure) => [figure.canvas, figure]));
const resized = new ResizeObserver((seen) => {
  drawSoon(seen.map(({ target }) => byCanvas.get(target)).filter((figure) => figure.width !== figure.canvas.clientWidth));
});
for (const figure of figures) {
  resized.observe(figure.canvas);
  watch(figure);
}
drawSoon(figures);

for (const group of document.querySelectorAll(".chips")) {
  const section = group.closest("[data-scenario]");
  const scenario = report.scenarios[+section.dataset.scenario];
  const buttons = [...group.querySelectorAll("[data-policy]")];
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const one of buttons) {
      const on = button.classList.contains("every") || (!button.classList.contains("none") && (one === button) !== (one.getAttribute("aria-pressed") === "true"));
      one.setAttribute("aria-pressed", on);
      scenario.chosen[on ? "add" : "delete"](+one.dataset.policy);
    }
    drawSoon(figures.filter((figure) => figure.scenario === scenario));
  });
}

for (const [start, end] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
  document.addEventListener(start, (event) => {
    const marked = event.target.closest?.("[data-tip]");
    if (!marked) return;
    const area = marked.getBoundingClientRect();
    showTip([{ text: marked.dataset.tip }], event.clientX ?? area.left, event.clientY ?? area.bottom);
  });
  document.addEventListener(end, (event) => { if (event.target.closest?.("[data-tip]")) hideTip(); });
}

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const sections = [...document.querySelectorAll("header[id], section[id]")];
function here() {
  const current = sections.filter((section) => section.getBoundingClientRect().top < 120).at(-1) ?? sections[0];
  for (const [id, link] of links) {
    if (id === current.id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  const bar = document.querySelector("nav ul"), link = links.get(current.id);
  if (link) bar.scrollLeft = link.offsetLeft - bar.clientWidth / 2 + link.offsetWidth / 2;
}
let scrolled = false;
window.addEventListener("scroll", () => {
  if (scrolled) return;
  scrolled = true;
  requestAnimationFrame(() => { scrolled = false; here(); });
}, { passive: true });
here();
