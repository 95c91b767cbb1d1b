"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const plots = [...document.querySelectorAll(".plot")];
  const drawn = new Set();
  const config = { displayModeBar: false, responsive: true, showTips: false };

  // Return the layout's colours for the current theme.
  function colours(layout) {
    const css = getComputedStyle(root);
    const of = (name) => css.getPropertyValue(`--${name}`).trim();
    const patch = { "font.color": of("ink"), "hoverlabel.bgcolor": of("soft"), "hoverlabel.font.color": of("ink"), "hoverlabel.bordercolor": of("line") };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      patch[`${axis}.gridcolor`] = of("line");
      patch[`${axis}.linecolor`] = of("line");
    }
    return patch;
  }

  // Unpack a symmetric matrix from its upper triangle (pack in explorers.py).
  function square(packed, size) {
    const values = Int8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    const rows = Array.from({ length: size }, () => new Array(size));
    let at = 0;
    for (let i = 0; i < size; i++) for (let j = i; j < size; j++) rows[i][j] = rows[j][i] = values[at++] / 127;
    return rows;
  }

  // Return the attributes that a frame replaces in the first trace. A frame without this view shows its first.
  function update(frame, view) {
    if (!frame.cosines) return frame.update;
    const ids = frame.clients.map(String);
    return { x: ids, y: ids, z: square(frame.cosines[view] ?? frame.cosines[0], ids.length) };
  }

  function draw(plot) {
    if (drawn.has(plot)) return;
    drawn.add(plot);
    const { figure, runs, alt } = JSON.parse(document.getElementById(`${plot.id}-data`).textContent);
    figure.layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
    if (!runs.length) {
      Plotly.newPlot(plot, figure.data, figure.layout, config);
    } else {
      explore(plot, figure, runs, alt);
    }
    Plotly.relayout(plot, colours(figure.layout));
  }

  // Draw a chart with controls for run, view and round.
  function explore(plot, figure, runs, alt) {
    const [run, view, slider, output, reading] = [".run", ".view", ".frame", ".round", ".reading"].map((name) => plot.parentElement.querySelector(name));
    const [first, ...rest] = figure.data;
    function show() {
      const { name, frames } = runs[run ? run.value : 0];
      if (slider) slider.max = frames.length - 1;
      const frame = frames[slider ? slider.value : 0];
      const chosen = view ? Number(view.value) : 0;
      const round = frame.round === null ? "" : `, round ${frame.round}`;
      if (slider) {
        output.textContent = frame.round;
        slider.setAttribute("aria-valuetext", `round ${frame.round}`);
        slider.disabled = frames.length < 2;
      }
      reading.textContent = `${name}${round} — ${frame.text[chosen] ?? frame.text[0]}.`;
      plot.setAttribute("aria-label", `${alt}. ${reading.textContent}`);
      Plotly.react(plot, [{ ...first, ...update(frame, chosen) }, ...rest], plot.layout ?? figure.layout, config);
    }
    if (slider) {
      slider.max = Math.max(...runs.map(({ frames }) => frames.length)) - 1; // before the value, which max limits
      slider.value = slider.max;
    }
    for (const control of [run, view, slider]) if (control) control.addEventListener("input", show);
    show();
  }

  function repaint() {
    button.textContent = getComputedStyle(root).colorScheme === "dark" ? "Light" : "Dark";
    for (const plot of drawn) Plotly.relayout(plot, colours(plot.layout));
  }

  // Sort a table's rows by a click on a column's head; a second click reverses the order.
  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) =>
      head.firstElementChild.addEventListener("click", () => {
        const way = head.ariaSort === "descending" ? 1 : -1;
        heads.forEach((each) => (each.ariaSort = each === head ? (way > 0 ? "ascending" : "descending") : null));
        const value = (row) => Number(row.cells[column].dataset.value ?? -Infinity);
        table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => way * (value(a) - value(b) || 0)));
      }),
    );
  }

  const seen = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "300px" },
  );
  plots.forEach((plot) => seen.observe(plot));
  document.querySelectorAll("table.sortable").forEach(sortable);
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = getComputedStyle(root).colorScheme === "dark" ? "light" : "dark";
    repaint();
  });
  system.addEventListener("change", repaint);
  addEventListener("beforeprint", () => plots.forEach(draw));
  repaint();
})();
