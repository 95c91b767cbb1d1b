// From a chart's data to Plotly's traces and layout, by what is chosen and by a style: ground, width, size of the font.
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const GROUNDS = {
  light: { ink: "#1b1f24", line: "#d8dee4", soft: "#f6f8fa", middle: "#f7f7f7" },
  dark: { ink: "#e6e9ec", line: "#363c44", soft: "#1d2127", middle: "#20252b" },
};
// Orange and blue, which colour-blind readers can tell apart; orange is conflict.
const DIVERGING = {
  light: [[0, "#b35806"], [0.25, "#f1a340"], [0.5, "#f7f7f7"], [0.75, "#67a9cf"], [1, "#2166ac"]],
  dark: [[0, "#ffa64d"], [0.25, "#a85a10"], [0.5, "#20252b"], [0.75, "#2a6ca3"], [1, "#74bdf5"]],
};

function build(chart, style) {
  const drawn = { lines, dots, bars, heat: panels, surface: panels, bubbles: panels }[chart.kind](chart, style);
  return { data: drawn.data, layout: dressed(drawn, style) };
}

// Lay out as the style asks for: colours of the ground, fonts, and a legend on paper.
function dressed({ layout, legend = [] }, style) {
  const { ink, line, soft } = GROUNDS[style.ground];
  const rows = legend.length ? legendRows(legend, style) : 0;
  const above = rows * (style.size + 9);
  const height = style.paper && layout.paper ? layout.paper : layout.height;
  const made = {
    margin: { l: 4.8 * style.size, r: 10, t: 10 + above, b: 3.2 * style.size },
    dragmode: coarse ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { namelength: -1, bgcolor: soft, bordercolor: line, font: { color: ink, size: style.size } },
    ...layout,
    font: { family: FONT, size: style.size, color: ink },
    width: style.width,
    height: height + above,
    showlegend: rows > 0,
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal", font: { size: style.size } },
  };
  for (const [key, axis] of Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name))) {
    const title = axis.title ? { ...axis.title, font: { size: style.size }, standoff: 5 } : undefined;
    made[key] = { zeroline: false, ...axis, title, gridcolor: line, linecolor: line, tickcolor: line };
  }
  return made;
}

// Rows that Plotly needs for a legend: it gives every entry the width of the longest one.
function legendRows(names, style) {
  const longest = Math.max(...names.map((name) => name.length)) * 0.56 * style.size + 45;
  return Math.ceil(names.length / Math.max(1, Math.floor((style.width - 62) / longest)));
}

const positions = (trace) => trace.x ?? trace.y.map((_, at) => trace.x0 + trace.dx * at);

// Value of a method's axis of seconds or bytes at a round, between recorded rounds on a straight line.
function along([rounds, values], round) {
  const after = rounds.findIndex((each) => each >= round);
  if (after < 0) return null;
  if (rounds[after] === round || after === 0) return rounds[after] === round ? values[after] : null;
  const part = (round - rounds[after - 1]) / (rounds[after] - rounds[after - 1]);
  return values[after - 1] + part * (values[after] - values[after - 1]);
}

function lines(chart, style) {
  const { part, spec: { figure } } = chart;
  const axis = figure.rounds ? part.axis : undefined;
  const above = ({ meta }) => ["line", "mark"].indexOf(meta.role); // bands lie below all lines
  const shown = figure.data.filter(({ meta }) => !part.hidden.has(meta.method)).sort((a, b) => above(a) - above(b));
  const heights = shown.filter(({ meta }) => meta.role === "line").flatMap(({ y }) => y.filter((value) => value !== null));
  const least = Math.min(...heights);
  const most = Math.max(...heights);
  const crowd = Math.max(1, new Set(shown.map(({ meta }) => meta.method)).size / 4); // many bands are pale
  const log = part.log && heights.length && least > 0;
  const isShare = figure.layout.yaxis.tickformat?.includes("%") && least >= 0 && most <= 1;
  const [floor, ceiling] = [log ? least / 10 : isShare ? 0 : -Infinity, isShare ? 1 : Infinity]; // of bands
  const data = shown.map((trace) => {
    const { method, role, variant } = trace.meta;
    const tone = colour(method, style.ground);
    const x = axis ? positions(trace).map((round) => along(axis.values[method], round)) : positions(trace);
    const made = { ...trace, type: "scatter", x, x0: undefined, dx: undefined, legendgroup: trace.name, hoverinfo: "none" };
    if (role === "low" || role === "high") {
      const y = trace.y.map((value) => (value === null ? null : Math.min(Math.max(value, floor), ceiling)));
      const alpha = ((style.ground === "dark" ? 0.25 : 0.18) * (variant ? 0.5 : 1)) / crowd;
      return { ...made, y, mode: "lines", line: { width: 0 }, fillcolor: faint(tone, alpha), hoverinfo: "skip", showlegend: false };
    }
    const marker = { size: style.paper ? 4 : 6, ...trace.marker, color: tone };
    if (role === "mark") return { ...made, marker: { ...marker, line: { width: 1.5, color: GROUNDS[style.ground].soft } }, showlegend: false };
    return { ...made, marker, line: { width: style.paper ? 1.4 : 2.2, ...trace.line, color: tone }, showlegend: !variant };
  });
  const variants = [...new Set(shown.map(({ meta }) => meta.variant).filter(Boolean))];
  for (const name of variants) data.push({ type: "scatter", x: [null], y: [null], name, mode: "lines", meta: {}, line: { dash: "dot", width: 1.4, color: GROUNDS[style.ground].ink } });
  const { xaxis, yaxis, ...rest } = figure.layout;
  const xs = [...new Set(data.flatMap(({ x }) => x))].filter((x) => x !== null);
  const few = !axis && xs.length <= 10 && Math.max(...xs) - Math.min(...xs) <= 10;
  return {
    data,
    legend: style.paper ? [...shown.filter(({ meta }) => meta.role === "line" && !meta.variant).map(({ name }) => name), ...variants] : [],
    layout: {
      ...rest,
      paper: 0.58 * COLUMN,
      height: chart.figure.closest(".summary") ? 270 : rest.height,
      xaxis: { ...xaxis, title: { text: axis ? axis.title : xaxis.title.text }, dtick: few ? 1 : undefined },
      yaxis: { ...yaxis, type: log ? "log" : "linear", ...(log ? {} : { range: range(data) }) },
    },
  };
}

// Range of y: all lines, marks and bands.
function range(traces) {
  const heights = traces.flatMap(({ y }) => y.filter((value) => value !== null));
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  const room = Math.max(0.06 * (high - low), 0.001 * Math.abs(high)) || 0.1;
  return [low - room, high + room];
}

function dots(chart, style) {
  const { part, spec: { figure } } = chart;
  const data = figure.data.filter(({ meta }) => !part.hidden.has(meta.method)).map((trace) => {
    const tone = colour(trace.meta.method, style.ground);
    const chosen = (trace.customdata ?? []).map((client) => part.clients.has(client));
    const picked = part.clients.size && trace.customdata;
    return {
      ...trace,
      type: "scatter",
      mode: picked ? "markers+text" : "markers",
      text: picked ? trace.customdata.map((client, at) => (chosen[at] ? part.called(client) : "")) : trace.text,
      hovertext: trace.text,
      textposition: "top center",
      hovertemplate: `${trace.name}<br>%{hovertext}<br>${figure.layout.xaxis.title.text}: %{x}<br>${figure.layout.yaxis.title.text}: %{y}<extra></extra>`,
      marker: {
        ...trace.marker,
        color: tone,
        size: picked ? chosen.map((yes) => (yes ? 12 : 6)) : trace.customdata ? 7 : 9,
        opacity: picked ? chosen.map((yes) => (yes ? 1 : 0.25)) : trace.customdata ? 0.75 : 1,
      },
    };
  });
  return { data, legend: style.paper ? data.map(({ name }) => name) : [], layout: figure.layout };
}

function bars(chart, style) {
  const { part, spec: { figure } } = chart;
  const data = figure.data.map((trace) => {
    const kept = trace.y.map((_, at) => at).filter((at) => !part.hidden.has(trace.meta.methods[at]));
    return {
      ...trace,
      y: kept.map((at) => trace.y[at]),
      x: kept.map((at) => trace.x[at]),
      marker: { color: colour(trace.meta.part, style.ground) },
      hovertemplate: "%{x:.3~g} s",
    };
  });
  return { data, legend: data.map(({ name }) => name), layout: figure.layout };
}

// Sentence on a chart for readers who do not see it.
function described(chart) {
  const { alt, frames } = chart.spec;
  return frames ? `${alt}. ${spoken(chart)}` : alt;
}
