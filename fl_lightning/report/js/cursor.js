// The shared cursor: over one chart, the same x is marked in all other charts over the same axis, with their values.
function listen(chart) {
  chart.plot.on("plotly_click", ({ points }) => {
    const client = pointed(chart, points[0]);
    if (client !== undefined) toggleClient(chart.part, client);
  });
  if (chart.kind !== "lines") return;
  chart.plot.on("plotly_hover", ({ points }) => point(chart, points[0].x));
  chart.plot.on("plotly_unhover", () => point(chart, null));
}

// The client that a point of a chart stands for.
function pointed(chart, { customdata, x, y }) {
  if (chart.kind === "dots") return customdata;
  if (chart.kind === "bubbles") return x;
  return chart.kind === "heat" && chart.spec.figure.y === "client" ? chart.part.clientOf(y) : undefined;
}

function point(from, x) {
  const alike = from.part.charts.filter((each) => each.drawn && each.near && each.kind === "lines");
  for (const chart of alike) {
    chart.stage.querySelectorAll(".cursor, .tip").forEach((each) => each.remove());
    if (x !== null && chart.spec.figure.rounds === from.spec.figure.rounds) mark(chart, x);
  }
}

function mark(chart, x) {
  const { xaxis, _size: size } = chart.plot._fullLayout;
  const from = xaxis.l2p(x);
  if (!(from >= 0 && from <= xaxis._length)) return;
  const left = size.l + from;
  chart.stage.append(make("div", { class: "cursor", style: `left:${left}px;top:${size.t}px;height:${size.h}px` }));
  const rows = values(chart, x);
  const half = left > chart.plot.clientWidth / 2;
  const place = half ? `right:${chart.plot.clientWidth - left + 8}px` : `left:${left + 8}px`;
  const title = chart.plot._fullLayout.xaxis.title.text;
  const room = (half ? left : chart.plot.clientWidth - left) - 16;
  const tip = make("div", { class: rows.length > 10 ? "tip many" : "tip", style: `${place};top:${size.t}px;max-width:${room}px` }, make("b", {}, `${title} ${written(x)}`));
  for (const { name, text, tone } of rows) {
    tip.append(make("span", {}, make("i", { style: `color:${tone}` }), make("span", {}, `${name}: ${text}`)));
  }
  chart.stage.append(tip);
}

// Name and values of each method at the points nearest to x: before the correction, if there is such a line, and after.
function values(chart, x) {
  const percent = /%/.test(chart.spec.figure.layout.yaxis.tickformat ?? "");
  const found = new Map();
  const of = (method, variant, role) => chart.plot.data.find(({ meta }) => meta.method === method && meta.variant === variant && meta.role === role);
  for (const trace of chart.plot.data.filter(({ meta }) => meta.role === "line")) {
    const { method, variant } = trace.meta;
    const at = nearest(trace.x, x);
    if (at < 0 || trace.y[at] === null) continue;
    const half = (of(method, variant, "high")?.y[at] ?? NaN) - trace.y[at];
    const text = plusMinus(trace.y[at], half, percent);
    const after = found.get(method);
    found.set(method, { name: chart.part.methods[method], tone: trace.line.color, text: after ? `${text} → ${after.text}` : text });
  }
  return [...found.values()];
}

function nearest(xs, x) {
  let best = -1;
  xs.forEach((each, at) => {
    if (each !== null && (best < 0 || Math.abs(each - x) < Math.abs(xs[best] - x))) best = at;
  });
  return best;
}
