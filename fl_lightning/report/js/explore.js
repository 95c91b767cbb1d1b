// Charts of panels side by side, one per method, with one seed, round, view and order for all panels.
const DECADES = [0.1, 3]; // smallest and largest range of a loss surface's colours, in powers of ten
const LINE = 15; // pixels of a line above a panel

// Unpack a symmetric matrix from its upper triangle (pack in content/arrays.py).
function square(packed, size) {
  const values = Int8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const rows = Array.from({ length: size }, () => new Array(size));
  let at = 0;
  for (let i = 0; i < size; i++) for (let j = i; j < size; j++) rows[i][j] = rows[j][i] = values[at++] / 127;
  return rows;
}

// What a chart shows: the part's seed and round, as far as the chart has them, and what its own controls say. The rounds
// are those that any run of the seed has: the last one until the reader chooses, then the last one up to the choice.
function chosen(chart) {
  const { part, spec: { frames } } = chart;
  const control = (name) => chart.figure.querySelector(`.controls .${name}`);
  const seed = frames.runs.find((run) => run.seed === part.seed)?.seed ?? frames.runs[0].seed;
  const runs = frames.runs.filter((run) => run.seed === seed);
  const rounds = [...new Set(runs.flatMap((run) => run.frames.map(({ round }) => round)))].sort((a, b) => a - b);
  const at = part.round === null ? rounds.length - 1 : Math.max(0, rounds.findLastIndex((each) => each <= part.round));
  const round = rounds[at];
  if (control("seed")) control("seed").value = seed;
  const slider = control("frame");
  if (slider) {
    Object.assign(slider, { max: rounds.length - 1, value: at, disabled: rounds.length < 2, rounds });
    control("round").textContent = round;
    slider.setAttribute("aria-valuetext", `round ${round}`);
  }
  const view = control("view")?.selectedIndex ?? 0; // first all, then each
  const views = view ? [view - 1] : frames.views.map((_, at) => at);
  return { seed, runs, round, views: views.length ? views : [0], order: control("order")?.value ?? "id" };
}

// Act on a control: a seed and a round are chosen for all charts of the part, anything else for the one chart.
function explore(chart, { className, value, rounds }) {
  const { part } = chart;
  if (className === "seed") part.seed = value;
  if (className === "frame") part.round = rounds[value];
  const alike = part.charts.filter((each) => each.figure.querySelector(".controls"));
  for (const each of ["seed", "frame"].includes(className) ? alike : [chart]) each.refresh();
}

// The panels to draw: name, view, and the frame of the chosen round, else of the last recorded round before it. A frame
// with a single view, of updates that no rule corrected, is drawn once.
function visible(chart, { runs, round, views }) {
  const { frames } = chart.spec;
  const { part } = chart;
  return frames.panels.flatMap((name, panel) => {
    const run = runs.find((each) => each.panel === panel);
    const frame = run?.frames.findLast((each) => each.round === undefined || each.round <= round) ?? run?.frames[0];
    if (!frame || part.hidden.has(part.methods.indexOf(name))) return [];
    if (frame.text.length < 2) return [{ name, frame, view: 0, told: "" }];
    return views.map((view) => ({ name, frame, view, told: frames.views[view] }));
  });
}

function spoken(chart) {
  const choice = chosen(chart);
  const place = [`Seed ${choice.seed}`, ...(choice.round === undefined ? [] : [`round ${choice.round}`])].join(", ");
  const each = visible(chart, choice).map(({ name, frame, view, told }) => {
    const values = Object.entries(frame.text[view]).map(([key, value]) => `${key}: ${value}`);
    return `${name}${told ? `, ${told}` : ""} — ${values.join("; ")}`;
  });
  return `${place}. ${each.join(". ")}.`;
}

// Traces of one panel, without their axes, and the positions of chosen clients along them.
const CONTENT = {
  heat({ part, spec: { figure, frames } }, { frame, view }, choice) {
    const template = (cell, value) => `${cell}: ${value}<extra></extra>`;
    if (!frame.cosines) {
      const value = figure.scale.percent ? "%{z:.2%}" : "%{z:.3g}";
      const y = frame.y.map((each) => (figure.y === "client" ? part.label(each) : String(each)));
      const rows = figure.y === "client" ? frame.y.flatMap((client, at) => (part.clients.has(client) ? [at] : [])) : [];
      return { traces: [{ type: "heatmap", x: frame.x, y, z: frame.z, hovertemplate: template(`${figure.y} %{y}, round %{x}`, value) }], rows, columns: [] };
    }
    const order = frames.orders[choice.seed]?.[choice.order] ?? [...frame.clients].sort((a, b) => a - b);
    const place = new Map(frame.clients.map((client, at) => [client, at]));
    const clients = order.filter((client) => place.has(client));
    const all = square(frame.cosines[view], frame.clients.length);
    const z = clients.map((a) => clients.map((b) => all[place.get(a)][place.get(b)]));
    const ids = clients.map((client) => part.label(client));
    const rows = clients.flatMap((client, at) => (part.clients.has(client) ? [at] : []));
    return { traces: [{ type: "heatmap", x: ids, y: ids, z, hovertemplate: template("clients %{y} and %{x}", "%{z:.2f}") }], rows, columns: rows };
  },
  surface(chart, { frame }) {
    const z = frame.loss.map((row) => row.map((loss) => (loss === null ? null : Math.log10(Math.max(loss, 1e-9)))));
    const [low, high] = decades(chart);
    const contour = {
      type: "contour", x: frame.steps, y: frame.steps, z, customdata: frame.loss, autocontour: false,
      contours: { start: low, end: high, size: (high - low) / 20 },
      line: { width: 0.5, color: "rgba(255,255,255,0.5)" }, hovertemplate: "loss %{customdata:.4g}<extra></extra>",
    };
    const marker = { symbol: "cross-thin", size: 12, line: { width: 2, color: "white" } };
    const centre = { type: "scatter", x: [0], y: [0], mode: "markers", marker, hoverinfo: "skip", showlegend: false };
    return { traces: [contour, centre], rows: [], columns: [] };
  },
  bubbles({ part, spec: { frames } }, { frame }, choice, style, width) {
    const [x, y, sizes] = frame.held;
    const most = Math.max(1, ...frames.runs.flatMap((run) => run.frames[0].held[2]));
    const diameter = Math.min(24, (1.1 * width) / (1 + Math.max(0, ...x)));
    const marker = {
      size: sizes, sizemode: "area", sizeref: (2 * most) / diameter ** 2, sizemin: 1, color: colour(0, style.ground), line: { width: 0 },
      opacity: x.map((client) => (!part.clients.size || part.clients.has(client) ? 0.9 : 0.2)),
    };
    const text = x.map((client) => part.called(client));
    const hovertemplate = "client %{text}, class %{y}: %{customdata:,} examples<extra></extra>";
    return { traces: [{ type: "scatter", mode: "markers", x, y, text, customdata: sizes, marker, hovertemplate, showlegend: false }], rows: [], columns: [] };
  },
};

// The ends of a loss surface's colours, log10(loss), the same for all seeds and rounds.
function decades(chart) {
  if (chart.ends) return chart.ends;
  const every = chart.spec.frames.runs.flatMap((run) => run.frames.flatMap(({ loss }) => loss.flat())).filter((loss) => loss !== null);
  const low = Math.log10(Math.max(Math.min(...every), 1e-9));
  const high = Math.log10(Math.max(Math.max(...every), 1e-9));
  return (chart.ends = [low, Math.min(Math.max(high, low + DECADES[0]), low + DECADES[1])]);
}

function colours(chart, style) {
  const { figure } = chart.spec;
  const bar = { orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "top", yref: "container", len: Math.min(260, style.width - 80), lenmode: "pixels", thickness: 9, outlinewidth: 0 };
  const titled = (text, more) => ({ ...bar, title: { text, side: "top", font: { size: style.size } }, tickfont: { size: style.size - 2 }, ...more });
  if (figure.kind === "surface") {
    const [cmin, cmax] = decades(chart);
    const tickvals = [0, 1, 2, 3, 4].map((at) => cmin + (at * (cmax - cmin)) / 4);
    const ticktext = tickvals.map((tick) => String(Number((10 ** tick).toPrecision(2))));
    return { cmin, cmax, colorscale: "Cividis", colorbar: titled("loss", { tickvals, ticktext }) };
  }
  const { low, high, title, percent } = figure.scale;
  const scale = figure.diverging ? DIVERGING[style.ground] : "Cividis";
  return { cmin: low, cmax: high, colorscale: scale, colorbar: titled(title, { tickformat: percent ? ".3~%" : undefined, nticks: 6 }) };
}

// Lines of the text above a panel: the method, then the view and the first value that sums it up.
function heading({ name, frame, view, told }, width, size) {
  const [[key, value]] = Object.entries(frame.text[view]);
  const wrap = (text) => text.split(" ").reduce((lines, word) => {
    const longer = `${lines.at(-1)} ${word}`.trim();
    return longer.length * 0.55 * size < width || !lines.at(-1) ? [...lines.slice(0, -1), longer] : [...lines, word];
  }, [""]);
  const safe = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  return [...wrap(name).map((line) => `<b>${safe(line)}</b>`), ...(told ? wrap(told) : []), ...wrap(`${key}: ${value}`)];
}

// Names of clients along an axis of their numbers, evenly spread, as many as have room.
function spread(part, clients, room) {
  const step = Math.ceil((1 + Math.max(0, ...clients)) / Math.max(1, room));
  const tickvals = part.names.map((_, client) => client).filter((client) => client % step === 0);
  return { tickvals, ticktext: tickvals.map((client) => part.label(client)), automargin: true };
}

// Lay the panels out in rows that fit the width.
function panels(chart, style) {
  const { part, spec: { figure } } = chart;
  const choice = chosen(chart);
  const shown = visible(chart, choice);
  const letters = part.names && figure.y === "client" ? Math.max(...part.labels.map((each) => each.length)) : 0;
  const gap = Math.max(52, 30 + 0.55 * letters * style.size);
  const margin = { l: gap - 2, r: 14, t: figure.kind === "bubbles" ? 6 : 52, b: 42 };
  const area = style.width - margin.l - margin.r;
  const fit = Math.floor((area + gap) / ((figure.square ? (style.paper ? 130 : 190) : 380) + gap));
  const rows = Math.max(1, Math.ceil(shown.length / Math.max(1, Math.min(fit, 5))));
  const columns = Math.max(1, Math.ceil(shown.length / rows)); // as many in each row
  const wide = Math.min((area - gap * (columns - 1)) / columns, figure.square ? (rows > 1 ? 250 : 360) : Infinity);
  const tall = figure.square ? wide : figure.height;
  const headings = shown.map((panel) => heading(panel, wide, style.size - 1));
  const above = LINE * Math.max(1, ...headings.map((each) => each.length)) + 6;
  const height = rows * (tall + above) + (rows - 1) * 46;
  const layout = { height: height + margin.t + margin.b, margin, hovermode: "closest", annotations: [], shapes: [], showlegend: false };
  if (figure.kind !== "bubbles") layout.coloraxis = colours(chart, style);
  const data = shown.flatMap((panel, at) => {
    const [row, column, id] = [Math.floor(at / columns), at % columns, at ? String(at + 1) : ""];
    const left = (column * (wide + gap)) / area;
    const top = 1 - (row * (tall + above + 46) + above) / height;
    const content = CONTENT[figure.kind](chart, panel, choice, style, wide);
    const below = at + columns >= shown.length;
    const axis = { showgrid: figure.kind === "bubbles", ticks: "", tickfont: { size: style.size - 2 } };
    const named = typeof content.traces[0].x[0] === "string" ? { type: "category" } : {};
    const down = figure.kind === "surface" ? {} : { autorange: "reversed" };
    const category = typeof content.traces[0].y[0] === "string" ? { type: "category" } : {};
    const ticks = part.names && figure.kind === "bubbles" ? spread(part, panel.frame.held[0], wide / (1.5 * style.size)) : {};
    layout[`xaxis${id}`] = { ...axis, ...named, ...ticks, domain: [left, left + wide / area], anchor: `y${id}`, title: { text: below ? figure.x : "" } };
    layout[`yaxis${id}`] = { ...axis, ...category, ...down, domain: [Math.max(0, top - tall / height), top], anchor: `x${id}`, title: { text: column ? "" : figure.y } };
    layout.annotations.push({ text: headings[at].join("<br>"), align: "left", showarrow: false, xref: "paper", yref: "paper", x: left, y: top, xanchor: "left", yanchor: "bottom", font: { size: style.size - 1 } });
    const outline = { type: "rect", line: { width: 1.5, color: GROUNDS[style.ground].ink }, layer: "above" };
    for (const place of content.rows) layout.shapes.push({ ...outline, xref: `x${id} domain`, yref: `y${id}`, x0: 0, x1: 1, y0: place - 0.5, y1: place + 0.5 });
    for (const place of content.columns) layout.shapes.push({ ...outline, xref: `x${id}`, yref: `y${id} domain`, x0: place - 0.5, x1: place + 0.5, y0: 0, y1: 1 });
    return content.traces.map((trace) => ({ ...trace, xaxis: `x${id}`, yaxis: `y${id}`, ...(/heatmap|contour/.test(trace.type) ? { coloraxis: "coloraxis" } : {}) }));
  });
  return { data, layout };
}
