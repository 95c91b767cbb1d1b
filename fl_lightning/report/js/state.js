// What the page knows: its parts (experiments), their charts, and what the reader has chosen.
// The page's policy refuses styles written as text, which Plotly sets; it allows them one by one.
const { setAttribute } = Element.prototype;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

const root = document.documentElement;
const coarse = matchMedia("(pointer: coarse)").matches;
const system = matchMedia("(prefers-color-scheme: dark)");
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const palette = read("palette");
const [COLUMN, PAGE] = [312, 648]; // pixels: 3.25 and 6.75 inches, a column of a paper and both, as in on_paper.py
const POINT = 96 / 72; // pixels
const LONGEST = 16; // letters of a client's name along an axis
const theme = () => (getComputedStyle(root).colorScheme === "dark" ? "dark" : "light");
const colour = (number, ground) => palette[ground][number % palette[ground].length];

// Make an element with attributes and children.
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function faint(hex, alpha) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}

// Write a number as parts.written does.
function written(value, percent) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (percent) return `${(100 * value).toFixed(2)}\u00a0%`.replace("-", "−");
  const text = Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

// Write a mean and half the width of its interval as parts.plus_minus does.
function plusMinus(mean, half, percent) {
  if (mean === null || !(half > 0)) return written(mean, percent);
  const [a, b] = percent ? [100 * mean, 100 * half] : [mean, half];
  const decimals = Math.max(0, 1 - Math.floor(Math.log10(Number(b.toPrecision(2)))));
  return `${a.toFixed(decimals)} ± ${b.toFixed(decimals)}`.replace("-", "−") + (percent ? "\u00a0%" : "");
}

// A part of the page: the charts of one experiment, which share a legend, an x-axis, a scale, a seed, a round and clients.
class Part {
  constructor(element) {
    this.element = element;
    this.key = element.dataset.key;
    const { methods, axes, names } = read(`${this.key}part-data`);
    this.ids = new Map((names ?? []).map((name, id) => [name.toLowerCase(), id])); // clients by name
    this.labels = names?.map((name, id) => (name.length <= LONGEST ? name : `${name.slice(0, LONGEST - 6)}… ${id}`));
    Object.assign(this, { methods, axes, names, x: "round", log: false, seed: null, round: null, hidden: new Set(), clients: new Set(), watchers: [] });
    this.charts = [...element.querySelectorAll(".chart")].map((figure) => new Chart(this, figure));
  }

  // Change what is chosen, and show it everywhere.
  change(patch) {
    Object.assign(this, patch);
    for (const chart of this.charts) chart.refresh();
    for (const watcher of this.watchers) watcher();
  }

  // A client's name; its number where clients have no names.
  called(client) {
    return this.names?.[client] ?? String(client);
  }

  // A client's name as it has room along an axis, where it must differ from all others.
  label(client) {
    return this.labels?.[client] ?? String(client);
  }

  // The client of a label.
  clientOf(label) {
    return this.labels ? this.labels.indexOf(label) : Number(label);
  }

  get axis() {
    return this.axes.find(({ key }) => key === this.x);
  }
}

// A chart, which is drawn while it is near what the reader sees.
class Chart {
  constructor(part, figure) {
    this.part = part;
    this.figure = figure;
    this.stage = figure.querySelector(".stage");
    this.plot = figure.querySelector(".plot");
    this.near = this.drawn = this.stale = false;
    this.plot.chart = this;
    this.plot.style.minHeight = `${this.plot.dataset.height}px`; // room on the page until the chart is drawn
  }

  get spec() {
    return (this.parsed ??= read(`${this.plot.id}-data`));
  }

  get kind() {
    return this.spec.figure.kind;
  }

  refresh() {
    this.stale = true;
    if (this.near) this.render();
  }

  render(style = { ground: theme(), width: this.plot.clientWidth, size: 13 }) {
    const { data, layout } = build(this, style);
    Plotly.react(this.plot, data, layout, { displayModeBar: false, showTips: false, responsive: false });
    this.plot.setAttribute("aria-label", described(this));
    this.plot.style.minHeight = ""; // the room that was kept for it
    if (!this.drawn) listen(this);
    this.drawn = true;
    this.stale = false;
  }
}
