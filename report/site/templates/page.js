"use strict";
(() => {
const root = document.documentElement;
const tip = document.getElementById("tip");
const room = 12;

const dark = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");
function isDark() { return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches; }
function name() { button.textContent = isDark() ? "Light mode" : "Dark mode"; }
if (button) {
  button.hidden = false;
  name();
  dark.addEventListener("change", name);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("spectune-theme", root.dataset.theme); } catch (error) { /* not remembered */ }
    name();
  });
}

let told = null;
function show(mark) {
  if (told) told.classList.remove("is-told");
  told = mark;
  mark.classList.add("is-told");
  tip.textContent = mark.getAttribute("aria-label");
  tip.hidden = false;
  const at = mark.querySelector(".reach").getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.min(Math.max(room, at.left + at.width / 2 - size.width / 2), innerWidth - size.width - room);
  const above = at.top - size.height - 4;
  tip.style.left = `${Math.max(room, left)}px`;
  tip.style.top = `${above > room ? above : at.bottom + 4}px`;
}
function hide() {
  if (told) told.classList.remove("is-told");
  told = null;
  tip.hidden = true;
}

const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
function seen(svg) { return [...svg.querySelectorAll(".line:not([hidden]) .mark")]; }
function nearest(svg, event) {
  let best = null, least = 40;
  for (const mark of seen(svg)) {
    const at = mark.querySelector(".reach").getBoundingClientRect();
    const away = Math.hypot(event.clientX - at.left - at.width / 2, event.clientY - at.top - at.height / 2);
    if (away < least) { least = away; best = mark; }
  }
  return best;
}
function settle(svg) {
  seen(svg).forEach((mark, place) => { mark.tabIndex = place ? -1 : 0; });
}
for (const svg of document.querySelectorAll(".chart svg")) {
  for (const title of svg.querySelectorAll(".mark title")) title.remove();
  settle(svg);
  svg.addEventListener("pointermove", (event) => {
    const mark = nearest(svg, event);
    if (mark) { if (mark !== told) show(mark); } else hide();
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focusin", (event) => {
    const mark = event.target.closest(".mark");
    if (!mark) return;
    for (const other of seen(svg)) other.tabIndex = other === mark ? 0 : -1;
    show(mark);
  });
  svg.addEventListener("focusout", hide);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const marks = seen(svg);
    const place = marks.indexOf(event.target.closest(".mark"));
    const end = { Home: 0, End: marks.length - 1 }[event.key];
    if (place < 0 || !(event.key in steps || end !== undefined)) return;
    event.preventDefault();
    const next = marks[end === undefined ? place + steps[event.key] : end];
    if (next) next.focus();
  });
}
addEventListener("scroll", hide, { passive: true });

function axis(text) {
  const [low, high, log] = text.split(" ");
  const ends = [Number(low), Number(high)];
  if (!log) return (value) => (value - ends[0]) / (ends[1] - ends[0]);
  return (value) => Math.log(Math.max(value, ends[0] / 10) / ends[0]) / Math.log(ends[1] / ends[0]);
}
function draw(svg, isOther) {
  const [left, top, right, bottom] = svg.dataset.frame.split(" ").map(Number);
  const places = {};
  for (const side of ["x", "y"]) {
    const other = svg.dataset[side === "x" ? "otherX" : "otherY"];
    const changed = isOther[side] && other;
    places[side] = axis(changed ? other : svg.dataset[side]);
    for (const ticks of svg.querySelectorAll(`[data-ticks=${side}],[data-ticks=other-${side}]`))
      ticks.toggleAttribute("hidden", other ? ticks.dataset.ticks.startsWith("other") !== Boolean(changed) : false);
  }
  const x = (value) => left + places.x(value) * (right - left);
  const y = (value) => bottom - Math.min(Math.max(places.y(value), 0), 1) * (bottom - top);
  const point = (px, py) => `${px.toFixed(1)} ${py.toFixed(1)}`;
  for (const path of svg.querySelectorAll("[data-points]")) {
    const values = path.dataset.points.split(" ").map(Number);
    const ends = [];
    for (let at = 0; at < values.length; at += 2) ends.push(point(x(values[at]), y(values[at + 1])));
    path.setAttribute("d", "M" + ends.join("L"));
  }
  for (const path of svg.querySelectorAll("[data-repeats]")) {
    const [at, ...values] = path.dataset.repeats.split(" ").map(Number);
    path.setAttribute("d", values.map((value) => `M${point(x(at), y(value))}h0`).join(""));
  }
  for (const mark of svg.querySelectorAll("[data-at]")) {
    const [at, height] = mark.dataset.at.split(" ").map(Number);
    const old = mark.getAttribute("transform").match(/[-\d.]+/g).map(Number);
    mark.setAttribute("transform", `translate(${point(x(at), height === undefined ? old[1] : y(height))})`);
  }
  const labels = [...svg.querySelectorAll(".label:not([hidden])")].map((label) => {
    const strokes = svg.querySelectorAll(`.line[data-line="${CSS.escape(label.dataset.line)}"] .stroke[data-points]`);
    const values = strokes.length ? strokes[strokes.length - 1].dataset.points.split(" ").map(Number) : [0, 0];
    const leader = label.querySelector(".leader");
    if (leader) leader.remove();
    return { text: label.querySelector("text"), x: x(values[values.length - 2]) + 10, y: y(values[values.length - 1]) };
  }).sort((one, other) => one.y - other.y);
  let last = -99;
  for (const label of labels) {
    label.y = Math.max(label.y, last + 14);
    last = label.y;
    label.text.setAttribute("x", label.x.toFixed(1));
    label.text.setAttribute("y", (label.y + 4).toFixed(1));
  }
}
for (const form of document.querySelectorAll(".controls")) {
  const panels = document.getElementById(form.dataset.panels);
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => {
    const chosen = new FormData(form);
    const panel = chosen.get("panel") || "";
    const lines = form.querySelector("[name=line]") ? chosen.getAll("line") : null;
    const isOther = { x: chosen.get("x") === "other", y: chosen.get("y") === "other" };
    for (const chart of panels.querySelectorAll(".chart")) {
      chart.hidden = panel !== "" && chart.dataset.panel !== panel;
      for (const part of chart.querySelectorAll("[data-line]"))
        part.toggleAttribute("hidden", lines !== null && !lines.includes(part.dataset.line));
      const svg = chart.querySelector("svg");
      draw(svg, isOther);
      settle(svg);
    }
    panels.classList.toggle("is-single", panel !== "");
    hide();
  });
}

function reveal() {
  let target = null;
  try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch (error) { return; }
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target && target.tagName === "DETAILS") target.scrollIntoView();
}
addEventListener("hashchange", reveal);
if (location.hash) reveal();
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll(".cells details:not([open])")];
  for (const each of opened) each.open = true;
});
addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
