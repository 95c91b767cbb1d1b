// The table of clients, and the clients that all charts point out.
const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"; // heights, as in clients.py

// Read names, numbers and ranges of numbers: "3, 5-7" is 3, 5, 6, 7. A name comes before a number.
function ids(part, text) {
  const found = new Set();
  for (const entry of text.split(",").map((each) => each.trim().toLowerCase())) {
    if (part.ids.has(entry)) found.add(part.ids.get(entry));
    else if (/^[\d\s–-]+$/.test(entry)) {
      for (const [, from, to] of entry.matchAll(/(\d+)(?:\s*[-–]\s*(\d+))?/g)) {
        for (let id = Number(from); id <= Math.min(Number(to ?? from), Number(from) + 999); id++) found.add(id);
      }
    }
  }
  return found;
}

// What the reader would type for a client.
const typed = (part, client) => (part.ids.get(part.called(client).toLowerCase()) === client && !part.called(client).includes(",") ? part.called(client) : String(client));

function toggleClient(part, client) {
  const clients = new Set(part.clients);
  if (!clients.delete(client)) clients.add(client);
  part.element.querySelector(".pick input").value = [...clients].map((each) => typed(part, each)).join(", ");
  part.change({ clients });
}

function pickable(part) {
  const picker = part.element.querySelector(".pick");
  const used = part.element.querySelector(".roster") || part.charts.some((chart) => ["scatter", "cosines", "partition"].some((key) => chart.plot.id === `${part.key}${key}-plot`));
  picker.hidden = !used;
  picker.querySelector("input").addEventListener("input", (event) => part.change({ clients: ids(part, event.target.value) }));
}

// A line of a client's values over the rounds; gaps are rounds without the client.
function spark(letters, tone) {
  const [width, height] = [84, 18];
  const step = width / Math.max(1, letters.length - 1);
  const points = [...letters].flatMap((letter, at) => (letter === "." ? [] : [`${(at * step).toFixed(1)},${(height - 1 - (LETTERS.indexOf(letter) / 61) * (height - 2)).toFixed(1)}`]));
  const d = points.length > 1 ? `M${points.join("L")}` : points.length ? `M${points[0]}h1` : "";
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" })) svg.setAttribute(key, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  for (const [key, value] of Object.entries({ d, fill: "none", stroke: tone, "stroke-width": 1.5 })) path.setAttribute(key, value);
  svg.append(path);
  return svg;
}

const where = (screen) => (screen ? { class: "screen" } : {}); // columns that are too many for paper

function tabulate(part, element) {
  const { measures, runs } = read(`${part.key}clients-data`);
  const [controls, scroll] = [element.querySelector(".controls"), element.querySelector(".scroll")];
  const state = { column: 0, way: 1 };
  const select = make("select", { class: "run" });
  for (const [at, run] of runs.entries()) {
    const name = part.methods[run.method] + (run.seed === "–" ? "" : `, seed ${run.seed}`);
    select.append(make("option", { value: at }, name));
  }
  const note = make("span", { class: "caption" });
  controls.append(make("label", {}, "Run ", select), note);
  select.addEventListener("input", show);

  // Columns of the chosen run: title, numbers, and how to write them; a column of sparklines sorts by the mean.
  function columns(run) {
    const plain = (title, numbers, percent = false) => ({ title, numbers, cell: (at) => written(numbers[at], percent) });
    const order = [...run.clients].sort((a, b) => part.called(a).localeCompare(part.called(b), "en", { numeric: true }));
    const place = new Map(order.map((client, at) => [client, at]));
    const numbered = part.names ? [plain("number", run.clients)] : [];
    const found = [plain("client", run.clients.map((client) => place.get(client))), ...numbered, ...Object.entries(run.columns).map(([title, numbers]) => plain(title, numbers))];
    for (const [number, { title, percent }] of measures.entries()) {
      const { last, mean, sparks } = run.measures[number];
      if (mean.every((value) => value === null)) continue;
      found.push(plain(`${title}, last`, last, percent), { ...plain(`${title}, mean`, mean, percent), screen: true });
      const drawn = (at) => spark(sparks[at], colour(run.method, theme()));
      found.push({ title: `${title} by round`, numbers: mean, cell: drawn });
    }
    return found;
  }

  function show() {
    const run = runs[select.value];
    const all = columns(run);
    state.column = Math.min(state.column, all.length - 1);
    const { numbers } = all[state.column];
    const value = (at) => numbers[at] ?? -Infinity;
    const rows = run.clients.map((_, at) => at).sort((a, b) => state.way * (value(a) - value(b)) || a - b);
    const first = rows.filter((at) => part.clients.has(run.clients[at]));
    const body = make("tbody");
    for (const at of [...first, ...rows.filter((each) => !first.includes(each))]) {
      const id = run.clients[at];
      const button = make("button", { type: "button", "aria-pressed": part.clients.has(id), "aria-label": `Point out client ${part.called(id)}` }, part.called(id));
      button.addEventListener("click", () => toggleClient(part, id));
      const cells = all.slice(1).map(({ cell, screen }) => make("td", where(screen), cell(at)));
      body.append(make("tr", part.clients.has(id) ? { class: "chosen" } : {}, make("th", { scope: "row" }, button), ...cells));
    }
    const heads = all.map(({ title, screen }, column) => {
      const button = make("button", { type: "button" }, title);
      button.addEventListener("click", () => {
        Object.assign(state, { column, way: state.column === column ? -state.way : column ? -1 : 1 });
        show();
        scroll.querySelectorAll("thead button")[column].focus();
      });
      const sorted = column === state.column ? { "aria-sort": state.way > 0 ? "ascending" : "descending" } : {};
      return make("th", { scope: "col", ...where(screen), ...sorted }, button);
    });
    const caption = `Clients of ${select.selectedOptions[0].textContent}`;
    note.textContent = run.of > run.clients.length ? `the ${run.clients.length} clients with the most examples, of ${run.of.toLocaleString("en")}` : `${run.of.toLocaleString("en")} clients; sparklines share one scale in all runs`;
    scroll.replaceChildren(make("table", { "aria-label": caption }, make("thead", {}, make("tr", {}, ...heads)), body));
  }
  const chosen = () => [...part.clients, theme()].join();
  let last = chosen();
  part.watchers.push(() => {
    if (last !== chosen()) show();
    last = chosen();
  });
  show();
}
