// Figures and tables as files: SVG and PDF in the width of a paper's column, CSV from the chart's data.

function save(name, type, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A chart as SVG: light, eight points, with a legend.
async function svg(chart) {
  const wide = chart.figure.classList.contains("wide") || chart.kind === "bars";
  const width = wide ? PAGE : COLUMN;
  const { data, layout } = build(chart, { ground: "light", paper: true, width, size: 8 * POINT });
  const address = await Plotly.toImage({ data, layout }, { format: "svg", width: layout.width, height: layout.height });
  return { text: decodeURIComponent(address.slice(address.indexOf(",") + 1)), width: layout.width, height: layout.height };
}

// Print one figure on a page of its size.
async function pdf(chart) {
  const { text, width, height } = await svg(chart);
  const image = make("img", { src: `data:image/svg+xml,${encodeURIComponent(text)}`, alt: chart.spec.title, width, height });
  const style = new CSSStyleSheet();
  style.replaceSync(`@page { size: ${width}px ${height}px; margin: 0 } @media print { body { margin: 0; padding: 0 } }`);
  const sheet = make("div", { id: "sheet" }, image);
  await image.decode();
  document.adoptedStyleSheets.push(style);
  document.body.append(sheet);
  document.body.classList.add("one");
  addEventListener("afterprint", () => {
    document.body.classList.remove("one");
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== style);
    sheet.remove();
  }, { once: true });
  print();
}

// A text that a spreadsheet would take for a formula begins with an apostrophe.
const plain = (value) => (typeof value === "string" && /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : String(value ?? ""));
const cell = (value) => (/[",\n\r]/.test(plain(value)) ? `"${plain(value).replaceAll('"', '""')}"` : plain(value));
const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";

// All that a chart shows as rows, the head first; of panels, what is chosen.
function rows(chart) {
  const { part, spec: { figure } } = chart;
  if (chart.kind === "lines") return linesAsRows(chart);
  if (chart.kind === "dots") {
    const head = ["method", "name", figure.layout.xaxis.title.text, figure.layout.yaxis.title.text];
    return [head, ...figure.data.flatMap(({ name, text, x, y }) => text.map((each, at) => [name, each, x[at], y[at]]))];
  }
  if (chart.kind === "bars") return [["method", "part", figure.layout.xaxis.title.text], ...figure.data.flatMap(({ name, x, y }) => y.map((each, at) => [each, name, x[at]]))];
  const choice = chosen(chart);
  const cells = visible(chart, choice).flatMap((panel) => {
    const { frame, told } = panel;
    const name = [panel.name, ...(told ? [told] : [])].join(", ");
    const [trace] = CONTENT[chart.kind](chart, panel, choice, { ground: "light" }, COLUMN).traces;
    if (chart.kind === "bubbles") return trace.text.map((x, at) => [name, choice.seed, "", x, trace.y[at], trace.customdata[at]]);
    const values = trace.customdata ?? trace.z;
    const whole = (axis, value) => (axis === "client" ? part.called(part.clientOf(value)) : value); // labels are cut
    return trace.y.flatMap((y, i) => trace.x.map((x, j) => [name, choice.seed, frame.round, whole(figure.x, x), whole(figure.y, y), values[i][j]]));
  });
  return [["method", "seed", "round", figure.x, figure.y, figure.scale?.title ?? (chart.kind === "surface" ? "loss" : "examples")], ...cells];
}

function linesAsRows(chart) {
  const { part, spec: { figure } } = chart;
  const axes = figure.rounds ? part.axes : [];
  const bands = {};
  const found = figure.data.flatMap((trace) => {
    const { method, role, variant } = trace.meta;
    if (role === "low" || role === "high") bands[role] = { key: method + variant, y: trace.y };
    if (role !== "line") return [];
    const of = ({ key, y } = {}, at) => (key === method + variant ? y[at] : "");
    return positions(trace).map((x, at) => [part.methods[method], variant, x, ...axes.map(({ values }) => along(values[method], x)), trace.y[at], of(bands.low, at), of(bands.high, at)]);
  });
  return [["method", "variant", figure.layout.xaxis.title.text, ...axes.map(({ title }) => title), "mean", "low", "high"], ...found];
}

function exportable(chart) {
  const buttons = chart.figure.querySelector(".exports");
  buttons.hidden = false;
  const name = chart.plot.id.replace(/-plot$/, "");
  const ways = {
    SVG: async () => save(`${name}.svg`, "image/svg+xml", (await svg(chart)).text),
    PDF: () => pdf(chart),
    CSV: () => save(`${name}.csv`, "text/csv", csv(rows(chart))),
  };
  buttons.addEventListener("click", ({ target }) => ways[target.dataset.kind]?.());
}

// Buttons that copy or save a table as CSV, Markdown or LaTeX.
function exportableTable(buttons) {
  const texts = JSON.parse(buttons.querySelector("script").textContent);
  const said = buttons.querySelector("output");
  buttons.hidden = false;
  buttons.addEventListener("click", async ({ target }) => {
    const { file } = target.dataset;
    if (!file) return;
    if (target.className === "save") save(file, "text/plain", texts[file]);
    else await navigator.clipboard.writeText(texts[file]);
    said.textContent = target.className === "save" ? `${file} saved` : `${file} copied`;
  });
}
