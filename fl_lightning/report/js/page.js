// The page: legend and axes of each part, what is drawn when, themes, printing.
const parts = [...document.querySelectorAll(".part")].map((element) => new Part(element));
const charts = parts.flatMap((part) => part.charts);
const button = document.getElementById("theme");

const SYMBOLS = ["M-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0", "M-3.5,-3.5h7v7h-7z", "M0,-4.5L4.2,3.2H-4.2z", "M-4,-2.5L-2.5,-4L0,-1.5L2.5,-4L4,-2.5L1.5,0L4,2.5L2.5,4L0,1.5L-2.5,4L-4,2.5L-1.5,0z", "M0,-5L5,0L0,5L-5,0z", "M-1.3,-4.5h2.6v3.2h3.2v2.6h-3.2v3.2h-2.6v-3.2h-3.2v-2.6h3.2z", "M0,-5L1.2,-1.6H4.8L1.9,.6L3,4L0,2L-3,4L-1.9,.6L-4.8,-1.6H-1.2z"];
const STROKES = ["", "8 5", "14 6", "8 4 2 4", "14 5 2 5"];

// Line, dash and mark of a method, as on_page.py gives them to its lines.
function swatch(number) {
  const holder = make("span");
  const tone = colour(number, theme());
  holder.innerHTML = `<svg width="34" height="14" viewBox="-17 -7 34 14" aria-hidden="true"><path d="M-17,0H17" stroke="${tone}" stroke-width="2.2" stroke-dasharray="${STROKES[number % STROKES.length]}"/><path d="${SYMBOLS[number % SYMBOLS.length]}" fill="${tone}"/></svg>`;
  return holder.firstElementChild;
}

// One legend for all charts of a part: a click hides or shows a method, a double click (or Shift) shows it alone.
function legend(part) {
  const box = part.element.querySelector(".legend");
  part.element.querySelector(".bar").hidden = false;
  const buttons = part.methods.map((name, number) => {
    const each = make("button", { type: "button", title: "click: hide or show; double click or Shift: show alone" }, swatch(number), name);
    each.addEventListener("click", ({ shiftKey }) => (shiftKey ? alone(number) : toggle(number)));
    each.addEventListener("dblclick", () => alone(number));
    return each;
  });
  const toggle = (number) => {
    const hidden = new Set(part.hidden);
    if (!hidden.delete(number)) hidden.add(number);
    part.change({ hidden: hidden.size < part.methods.length ? hidden : new Set() });
  };
  const alone = (number) => {
    const others = part.methods.map((_, at) => at).filter((at) => at !== number);
    const already = !part.hidden.has(number) && others.every((at) => part.hidden.has(at));
    part.change({ hidden: new Set(already ? [] : others) });
  };
  const show = () => buttons.forEach((each, at) => {
    each.setAttribute("aria-pressed", !part.hidden.has(at));
    each.querySelector("svg").replaceWith(swatch(at));
  });
  part.watchers.push(show);
  box.append(...buttons);
  show();
}

function axes(part) {
  part.element.querySelector(".x")?.addEventListener("input", ({ target }) => part.change({ x: target.value }));
  const log = part.element.querySelector(".log");
  log.addEventListener("click", () => {
    part.change({ log: !part.log });
    log.setAttribute("aria-pressed", part.log);
  });
}

function repaint() {
  button.textContent = theme() === "dark" ? "Light" : "Dark";
  for (const part of parts) part.change({});
}

// Draw charts that come near what the reader sees; draw again what has changed since.
const seen = new IntersectionObserver(
  (entries) => entries.forEach(({ target: { chart }, isIntersecting }) => {
    chart.near = isIntersecting;
    if (isIntersecting && (!chart.drawn || chart.stale)) chart.render();
  }),
  { rootMargin: "300px" },
);
const sized = new ResizeObserver((entries) => entries.forEach(({ target: { chart } }) => {
  if (chart.drawn && chart.plot.clientWidth && chart.plot.layout.width !== chart.plot.clientWidth) chart.refresh();
}));

// Act once, when an element comes near what the reader sees, or before printing.
function whenNear(element, act) {
  const once = () => {
    observer.disconnect();
    removeEventListener("beforeprint", once);
    act();
  };
  const observer = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && once(), { rootMargin: "600px" });
  observer.observe(element);
  addEventListener("beforeprint", once);
}

for (const part of parts) {
  legend(part);
  axes(part);
  pickable(part);
  const roster = part.element.querySelector(".roster");
  if (roster) whenNear(roster, () => tabulate(part, roster));
}
for (const chart of charts) {
  exportable(chart);
  chart.figure.querySelector(".controls")?.addEventListener("input", ({ target }) => explore(chart, target));
  seen.observe(chart.plot);
  sized.observe(chart.plot);
}
document.querySelectorAll(".above > .exports:has(script)").forEach(exportableTable);
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = theme() === "dark" ? "light" : "dark";
  repaint();
});
system.addEventListener("change", repaint);
addEventListener("beforeprint", () => {
  if (document.body.classList.contains("one")) return;
  for (const chart of charts) chart.render({ ground: "light", paper: true, width: chart.figure.matches(".wide, .summary .chart:only-child") ? 690 : COLUMN, size: 8 * POINT });
});
addEventListener("afterprint", () => charts.forEach((chart) => chart.refresh()));
repaint();
