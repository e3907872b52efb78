(() => {
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
    .replace(/\$/g, "&#36;");
  const weightText = (weight) => (weight === 0 ? "0" : weight.toFixed(4));

  // ---- plots that the page brings as figures -------------------------------------------------------------------
  function coloured(trace) {
    const own = colour(`plot-${trace.meta}`);
    const line = colour(`plot-${trace.meta}-line`) || own;
    return { ...trace, line: { ...trace.line, color: line }, marker: { ...trace.marker, color: own } };
  }

  const drawFigures = () => document.querySelectorAll("[data-plot]").forEach((box) => draw(box, coloured));

  // ---- attention -------------------------------------------------------------------------------------------------
  // Eleven colours from no weight to the largest, equal steps of lightness (OKLab), each scale fading into its page.
  const SCALES = {
    light: [
      "#f1f2e2", "#d0e0c1", "#a3d2ab", "#73c1a5", "#48aca3", "#1a96a1",
      "#007e9b", "#006592", "#134c82", "#1c366b", "#1c2153",
    ],
    dark: [
      "#232535", "#2e3454", "#354674", "#325b8f", "#25759d", "#1b8fa5",
      "#0da9a9", "#37c1a4", "#73d695", "#b3e583", "#f1ef7a",
    ],
  };
  const night = matchMedia("screen and (prefers-color-scheme: dark)");
  const scale = () => SCALES[night.matches && !printing() ? "dark" : "light"];
  const { maps, tokens, labels, causal, units } = page.attention;
  const chosen = { map: 0, query: tokens.length - 1 };
  const find = (id) => document.getElementById(id);
  const weights = (map) => map.rows.map((row) => row.map((whole) => whole / units));
  // The first rows have few keys and so weights near 1: a scale up to the very largest would leave the rest dark.
  function brightest(rows) {
    const largest = rows.map((row) => Math.max(...row)).sort((a, b) => a - b);
    return Math.max(1 / units, largest[Math.floor(0.75 * (largest.length - 1))]);
  }

  function shade(share) {
    const colours = scale();
    const place = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
    const low = Math.min(Math.floor(place), colours.length - 2);
    const part = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
    return [0, 1, 2].map((i) => Math.round(
      part(colours[low], i) + (part(colours[low + 1], i) - part(colours[low], i)) * (place - low),
    ));
  }

  function ink([red, green, blue]) {
    return 0.299 * red + 0.587 * green + 0.114 * blue > 100 ? "#10141a" : "#ffffff";
  }

  function paintThumbnail(canvas, map) {
    canvas.width = canvas.height = tokens.length;
    const image = canvas.getContext("2d").createImageData(tokens.length, tokens.length);
    const rows = weights(map);
    const top = brightest(rows);
    rows.forEach((row, query) => row.forEach((weight, key) => {
      image.data.set([...shade(weight / top), 255], 4 * (query * tokens.length + key));
    }));
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  const blocks = [...new Set(maps.map((map) => map.block))];
  const heads = [...new Set(maps.map((map) => map.head))].sort((a, b) => a - b);

  function buildOverview() {
    const box = find("attention-overview");
    const widest = blocks.length > 6 ? "3.75rem" : "5.5rem";
    box.style.gridTemplateColumns = `max-content repeat(${heads.length}, minmax(2.4rem, ${widest}))`;
    const label = (text) => {
      const cell = document.createElement("span");
      cell.className = "axis";
      cell.textContent = text;
      box.append(cell);
    };
    label("");
    heads.forEach((head) => label(`head ${head}`));
    blocks.forEach((block) => {
      label(block);
      heads.forEach((head) => {
        const at = maps.findIndex((map) => map.block === block && map.head === head);
        if (at < 0) { label(""); return; }
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.map = at;
        button.setAttribute("aria-label", `${block}, head ${head}`);
        button.append(document.createElement("canvas"));
        button.addEventListener("click", () => choose(at));
        box.append(button);
      });
    });
  }

  function buildControls() {
    const block = find("attention-block");
    blocks.forEach((name) => block.add(new Option(name, name)));
    block.addEventListener("change", () => {
      const same = maps.findIndex((map) => map.block === block.value && map.head === maps[chosen.map].head);
      choose(same >= 0 ? same : maps.findIndex((map) => map.block === block.value));
    });
    find("attention-head").addEventListener("change", (event) => choose(Number(event.target.value)));
    tokens.forEach((token, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = token;
      button.addEventListener("click", () => { chosen.query = place; drawSentence(); });
      find("attention-sentence").append(button);
    });
  }

  function choose(at) {
    chosen.map = at;
    const { block, head } = maps[at];
    find("attention-block").value = block;
    find("attention-head").replaceChildren(
      ...maps.flatMap((map, i) => (map.block === block ? [new Option(map.head, i, false, map.head === head)] : [])),
    );
    document.querySelectorAll("#attention-overview button").forEach((button) => {
      button.setAttribute("aria-pressed", String(Number(button.dataset.map) === at));
    });
    drawMap();
    drawSentence();
  }

  function drawScale() {
    find("attention-scale").style.background = `linear-gradient(to right, ${scale()})`;
    document.querySelectorAll("#attention-overview button").forEach((button) => {
      paintThumbnail(button.firstChild, maps[button.dataset.map]);
    });
  }

  function drawMap() {
    const box = find("attention-plot");
    const count = tokens.length;
    const { block, head } = maps[chosen.map];
    box.setAttribute("aria-label", `Attention weights of ${block}, head ${head}: rows are queries, columns are keys`);
    const rows = weights(maps[chosen.map]);
    const top = brightest(rows);
    find("attention-max").textContent = `${weightText(top)} and more`;
    const longest = Math.max(...labels.map((label) => label.length));
    const margin = 34 + 7.4 * longest;
    const room = (printing() ? PRINT_WIDTH : box.parentElement.clientWidth) - margin - 12;
    const largest = Math.max(34, 120 / count);
    const cell = printing() ? room / count : Math.min(Math.max(Math.floor(room / count), 13), largest);
    const gap = cell > 9 ? 1 : 0;
    const size = Math.round(cell * count);
    const places = tokens.map((_, i) => i);
    const corner = (text, place) => ({ text, xref: "paper", yref: "paper", showarrow: false, ...place });
    const named = (place) => [escaped(tokens[place]), place];
    const axis = () => ({
      tickvals: places, ticktext: labels.map(escaped), ticks: "",
      tickfont: { family: colour("mono"), size: Math.min(12, Math.max(5, cell - 2)) },
      showgrid: false, zeroline: false, fixedrange: true,
    });
    const trace = {
      type: "heatmap", x: places, y: places, z: rows.map((row) => places.map((key) => row[key] ?? null)),
      customdata: places.map((query) => places.map((key) => [...named(query), ...named(key)])),
      zmin: 0, zmax: top, colorscale: scale().map((c, i, all) => [i / (all.length - 1), c]), showscale: false,
      xgap: gap, ygap: gap,
      hoverongaps: false,
      hovertemplate: "query <b>%{customdata[0]}</b> (place %{customdata[1]})<br>"
        + "key <b>%{customdata[2]}</b> (place %{customdata[3]})<br>weight <b>%{z:.4f}</b><extra></extra>",
    };
    const layout = themed({
      height: size + margin + 12,
      margin: { l: margin, t: margin, r: 12, b: 12 },
      xaxis: { ...axis(), side: "top", tickangle: longest > 2 ? -90 : 0, range: [-0.5, count - 0.5] },
      yaxis: { ...axis(), range: [count - 0.5, -0.5] },
      annotations: [
        corner("key (looked at) →", { x: 0, xanchor: "left", y: 1, yanchor: "bottom", yshift: margin - 20 }),
        corner("← query (looks)", { x: 0, xanchor: "right", y: 1, yanchor: "top", textangle: -90, xshift: 20 - margin }),
      ],
    }, size + margin + 12);
    layout.dragmode = false;
    Plotly.react(box, [trace], layout, CONFIG);
    if (!box.dataset.listens) {
      box.dataset.listens = "yes";
      box.on("plotly_click", (event) => { chosen.query = event.points[0].y; drawSentence(); });
    }
  }

  function drawSentence() {
    const { block, head, rows } = maps[chosen.map];
    const row = rows[chosen.query].map((whole) => whole / units);
    const top = Math.max(1 / units, ...row);
    [...find("attention-sentence").children].forEach((button, key) => {
      const seen = key < row.length;
      const tint = seen ? shade(row[key] / top) : null;
      button.style.background = seen ? `rgb(${tint})` : "";
      button.style.color = seen ? ink(tint) : "";
      button.classList.toggle("unseen", !seen);
      button.setAttribute("aria-pressed", String(key === chosen.query));
      button.title = seen ? `weight ${weightText(row[key])}` : "not seen from the chosen token";
    });
    const order = row.map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    const most = order.map(([weight, key]) => `“${tokens[key]}” (place ${key}) ${weightText(weight)}`).join(", ");
    const from = `“${tokens[chosen.query]}” (place ${chosen.query})`;
    find("attention-reading").textContent = `${block}, head ${head}: from ${from} the largest weights go to ${most}.`;
  }

  // ---- table -----------------------------------------------------------------------------------------------------
  function sortBy(table, column) {
    const header = table.tHead.rows[0].cells[column];
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const key = (row) => {
      const { number, value } = row.cells[column].dataset;
      return number === undefined ? value : number === "" ? NaN : Number(number);
    };
    const sorted = [...body.rows].map((row) => [key(row), row]).sort(([a], [b]) => {
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
      return ascending ? order : -order;
    });
    body.append(...sorted.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((cell) => cell.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  }

  // ---- start -----------------------------------------------------------------------------------------------------
  function drawAll() {
    drawFigures();
    if (maps.length) { drawScale(); drawMap(); drawSentence(); }
  }

  if (maps.length) {
    find("attention-view").hidden = false;
    buildOverview();
    buildControls();
    drawScale();
    choose(maps.length - 1);
  }
  drawFigures();
  document.querySelectorAll("#parameter-table thead button").forEach((button, column) => {
    button.addEventListener("click", () => sortBy(find("parameter-table"), column));
  });
  whenChanged(drawAll);
})();
