"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const root = document.documentElement;
  const PRINT_WIDTH = 640;
  const CONFIG = { displayModeBar: false, responsive: false, doubleClick: "reset" };
  const printing = () => root.classList.contains("printing");
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  function themed(layout, width) {
    const narrow = width < 520;
    const still = matchMedia("(pointer: coarse)").matches;
    const axis = (given) => ({
      gridcolor: colour("plot-grid"), linecolor: colour("line"), tickcolor: colour("line"), fixedrange: still, ...given,
      title: { ...given.title, font: { size: narrow ? 12 : 13, color: colour("muted") } },
    });
    return {
      ...layout, width,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: colour("sans"), size: narrow ? 11.5 : 13, color: colour("text") },
      hoverlabel: {
        bgcolor: colour("panel"), bordercolor: colour("line"),
        font: { color: colour("text"), family: colour("sans"), size: 13 }, align: "left",
      },
      dragmode: still ? false : "zoom",
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    };
  }

  function coloured(trace) {
    if (trace.meta === "field") {
      const stops = ["field-low", "field-middle", "field-high"].map((name, i) => [i / 2, colour(name)]);
      const contour = trace.type === "contour" ? { line: { color: colour("line"), width: 0.5 } } : {};
      return { ...trace, ...contour, colorscale: stops };
    }
    const [role, band] = trace.meta.split("-");
    const own = colour(`plot-${role}`);
    if (band) return { ...trace, fillcolor: `${own}33`, line: { ...trace.line, color: own } };
    const error = trace.error_y ? { error_y: { ...trace.error_y, color: colour("text") } } : {};
    return { ...trace, ...error, line: { ...trace.line, color: own }, marker: { ...trace.marker, color: own } };
  }

  function draw(box) {
    const figure = page.figures[box.dataset.plot];
    const width = printing() ? PRINT_WIDTH : box.clientWidth;
    const data = figure.data.map(coloured).map((trace) => (trace.type === "bar" ? (({ line, ...rest }) => rest)(trace) : trace));
    Plotly.react(box, data, themed(figure.layout, width), CONFIG);
  }

  const drawAll = () => document.querySelectorAll("[data-plot]").forEach(draw);
  drawAll();
  matchMedia("screen and (prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = root.clientWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (root.clientWidth !== width && !printing()) { width = root.clientWidth; drawAll(); }
    }, 120);
  });
  addEventListener("beforeprint", () => { root.classList.add("printing"); drawAll(); });
  addEventListener("afterprint", () => { root.classList.remove("printing"); drawAll(); });
})();
