(() => {
  function coloured(trace) {
    if (trace.meta === "field") {
      const stops = ["field-low", "field-middle", "field-high"].map((name, i) => [i / 2, colour(name)]);
      const contour = trace.type === "contour" ? { line: { color: colour("line"), width: 0.5 } } : {};
      return { ...trace, ...contour, colorscale: stops };
    }
    const [role, band] = trace.meta.split("-");
    const own = colour(`plot-${role}`);
    if (band) return { ...trace, fillcolor: `${own}33`, line: { ...trace.line, color: own } };
    const error = {};
    for (const which of ["error_x", "error_y"]) {
      if (trace[which]) error[which] = { ...trace[which], color: colour("text") };
    }
    const line = trace.type === "bar" ? {} : { line: { ...trace.line, color: own } };
    return { ...trace, ...error, ...line, marker: { ...trace.marker, color: own } };
  }

  const drawAll = () => document.querySelectorAll("[data-plot]").forEach((box) => draw(box, coloured));
  drawAll();
  whenChanged(drawAll);
})();
