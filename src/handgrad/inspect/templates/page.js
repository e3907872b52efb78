"use strict";
// What every page of handgrad shares: its data, its colours, and plots that follow width, theme and printing.
const { page, PRINT_WIDTH, CONFIG, printing, colour, themed, draw, whenChanged } = (() => {
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
      gridcolor: colour("plot-grid"), linecolor: colour("line"), tickcolor: colour("line"),
      fixedrange: still, ...given,
      title: { ...given.title, font: { size: narrow ? 12 : 13, color: colour("muted") } },
    });
    const styled = {
      ...layout,
      width,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: colour("sans"), size: narrow ? 11.5 : 13, color: colour("text") },
      hoverlabel: {
        bgcolor: colour("panel"), bordercolor: colour("line"),
        font: { color: colour("text"), family: colour("sans"), size: 13 }, align: "left",
      },
      dragmode: still ? false : "zoom",
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      annotations: (layout.annotations || []).map((label) => ({
        ...label, font: { size: 12, color: colour("plot-reference") },
      })),
    };
    if (narrow && layout.meta && layout.meta.narrow_ticktext) {
      styled.yaxis.ticktext = layout.meta.narrow_ticktext;
    }
    return styled;
  }

  function draw(box, coloured) {
    const figure = page.figures[box.dataset.plot];
    const width = printing() ? PRINT_WIDTH : box.clientWidth;
    Plotly.react(box, figure.data.map(coloured), themed(figure.layout, width), CONFIG);
  }

  function whenChanged(drawAll) {
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
  }

  return { page, PRINT_WIDTH, CONFIG, printing, colour, themed, draw, whenChanged };
})();
