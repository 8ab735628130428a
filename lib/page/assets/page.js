"use strict";
// Draws the page from the JSON and the tables that gradtool wrote into it. Numbers are never computed here: a chart draws the
// cells of its table, and the table and the download show the same text.

const page = JSON.parse(document.getElementById("page.json").textContent);

/** An element with attributes and children; text is text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== ""));
  return element;
}

/** The cells of a CSV text (RFC 4180), the header's line first. */
function readCsv(text) {
  const lines = [[]];
  let field = "", quoted = false;
  const end_field = () => { lines[lines.length - 1].push(field); field = ""; };
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted && c === '"' && text[i + 1] === '"') { field += c; i++; }
    else if (c === '"') quoted = !quoted;
    else if (quoted) field += c;
    else if (c === ",") end_field();
    else if (c === "\n") { end_field(); lines.push([]); }
    else field += c;
  }
  if (field !== "" || lines[lines.length - 1].length > 0) end_field(); else lines.pop();
  return lines;
}

const csvOf = chart => JSON.parse(document.getElementById(chart.id + ".csv").textContent);

/** The rows as Vega takes them. An empty cell is null; inf and nan are null too, because no axis has a place for them. */
function valuesOf(chart, lines) {
  return lines.slice(1).map(line => Object.fromEntries(chart.columns.map((column, i) => {
    if (line[i] === "") return [column.name, null];
    if (column.type === "truth") return [column.name, line[i] === "true"];
    if (column.type !== "number") return [column.name, line[i]];
    const number = Number(line[i]);
    return [column.name, Number.isFinite(number) ? number : null];
  })));
}

// The theme and the specifications have the colours of light paper. On the screen each stands for a variable of the style sheet,
// so that light, dark and print need no drawing of their own.
const COLOURS = {
  "#ffffff": "transparent", "#1c2126": "var(--ink)", "#3d454d": "var(--soft)", "#5b656f": "var(--faint)", "#6a747e": "var(--fainter)",
  "#8b959f": "var(--axis)", "#e6e9ec": "var(--grid)", "#b4bcc4": "var(--other)", "#98a2ac": "var(--other-point)",
  "#a3005c": "var(--picked)", "#5aa0cc": "var(--box)", "#0072b2": "var(--c1)", "#d55e00": "var(--c2)", "#009e73": "var(--c3)",
  "#cc79a7": "var(--c4)", "#e69f00": "var(--c5)", "#56b4e9": "var(--c6)", "#4b2e83": "var(--p1)", "#c3b1e1": "var(--p2)",
  "#8464b8": "var(--p3)",
};
const onScreen = json => JSON.parse(JSON.stringify(json), (_, value) => COLOURS[value] ?? value);

const isNarrow = () => document.documentElement.clientWidth < 600;

/** The specification with its numbers: what the download holds, and what any Vega-Lite draws. */
function wholeSpec(chart, lines) {
  return { ...chart.spec, width: 640, config: page.theme, datasets: { ...chart.spec.datasets, table: valuesOf(chart, lines) } };
}

/** For a narrow screen: fewer ticks, shorter names, and no names among the points, which the legend has as well. */
function narrowed(value) {
  if (Array.isArray(value)) return value.filter(one => !["labels", "words"].includes(one?.name)).map(narrowed);
  if (value === null || typeof value !== "object") return value;
  const fields = Object.entries(value).map(([name, inner]) => [name, name === "datasets" ? inner : narrowed(inner)]);
  const spec = Object.fromEntries(fields);
  if (spec.tickCount) spec.tickCount = Math.min(spec.tickCount, 5);
  if (spec.labelLimit > 200) spec.columns = 1;  // a legend of sentences
  else if (spec.labelLimit) spec.labelLimit = Math.min(spec.labelLimit, 130);
  return spec;
}

/**
 * Moves the names of points off the points and off each other; one that has no room is left out. Vega-Lite has no word for
 * this, so the Vega that it makes is changed. The layer "labels" is moved off the layer "points", which has a point for each of
 * them, because Vega fails on a layer that has nothing in it.
 */
function placeLabels(vega) {
  const visit = group => {
    const marks = group.marks ?? [];
    for (const mark of marks) visit(mark);
    const labels = marks.find(mark => mark.name === "labels_marks");
    if (!labels) return;
    delete labels.encode.update.dy;
    labels.transform = [{
      type: "label", size: { signal: "[max(width, 1), max(height, 1)]" }, padding: 60, offset: [11, 11, 11, 11, 13, 13, 13, 13],
      anchor: ["top", "bottom", "right", "left", "top-right", "bottom-right", "top-left", "bottom-left"],
      avoidMarks: ["points_marks"],
    }];
  };
  visit(vega);
  return vega;
}

async function draw(chart, place, lines) {
  const config = onScreen(page.theme);
  config.legend.columns = isNarrow() ? 2 : 8;
  let spec = { ...onScreen(chart.spec), datasets: { ...chart.spec.datasets, table: valuesOf(chart, lines) } };
  if (isNarrow()) {
    spec = narrowed(spec);
    // A chart with a line of text for each row keeps its height.
    if (spec.encoding?.y?.type !== "nominal") spec.height = Math.min(spec.height, 300);
  }
  const drawn = await vegaEmbed(place, spec, { renderer: "svg", actions: false, config, patch: placeLabels });
  // A binding's name stands beside its field; readers of screens need it on the field.
  for (const field of place.querySelectorAll(".vega-bind select")) {
    field.setAttribute("aria-label", field.closest(".vega-bind").querySelector(".vega-bind-name").textContent.trim());
  }
  place.querySelector("svg").setAttribute("aria-label", chart.title + ". " + chart.lead);
  return drawn;
}

/** A chart in a frame that shows whether there is more of it to the left or to the right. */
function scrollFrame(plot) {
  const scroll = make("div", { class: "scroll" }, plot);
  const frame = make("div", { class: "frame" }, scroll);
  const look = () => {
    const room = scroll.scrollWidth - scroll.clientWidth;
    frame.classList.toggle("scrolls", room > 1);
    frame.classList.toggle("more-left", scroll.scrollLeft > 1);
    frame.classList.toggle("more-right", scroll.scrollLeft < room - 1);
    if (room > 1) scroll.setAttribute("tabindex", "0"); else scroll.removeAttribute("tabindex");
  };
  scroll.addEventListener("scroll", look);
  new ResizeObserver(look).observe(scroll);
  new ResizeObserver(look).observe(plot);
  return [frame, make("p", { class: "hint" }, "This chart is wider than the screen: swipe or scroll it sideways.")];
}

function download(name, type, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** The picture as a paper wants it: light, 640 wide, whatever the screen shows. */
async function downloadPicture(chart, lines, format) {
  const place = make("div");
  const drawn = await vegaEmbed(place, wholeSpec(chart, lines), { renderer: "svg", actions: false, patch: placeLabels });
  if (format === "svg") download(chart.id + ".svg", "image/svg+xml", await drawn.view.toSVG());
  else make("a", { href: await drawn.view.toImageURL("png", 2), download: chart.id + ".png" }).click();
  drawn.finalize();
}

function dataTable(chart, lines) {
  const head = make("tr", {}, ...chart.columns.map(column => make("th", { scope: "col", title: column.meaning || null }, column.name)));
  const body = lines.slice(1).map(line => make("tr", {}, ...line.map((text, i) =>
    make("td", { class: chart.columns[i].type === "number" ? "number" : null }, text))));
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table of " + chart.title },
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function figure(chart) {
  const lines = readCsv(csvOf(chart));
  const plot = make("div", { class: "plot", id: chart.id + ".plot" });
  if (chart.min_width) plot.style.minWidth = chart.min_width + "px";
  const table = make("details", { class: "data" }, make("summary", {}, `Table (${lines.length - 1} rows)`));
  table.addEventListener("toggle", () => { if (table.open && table.children.length === 1) table.append(dataTable(chart, lines)); });
  const spec = () => JSON.stringify(wholeSpec(chart, lines), null, 1) + "\n";
  const element = make("figure", { id: chart.id, class: chart.min_width ? "wide" : null },
    make("h3", {}, chart.title),
    make("p", { class: "lead" }, chart.lead),
    ...scrollFrame(plot),
    make("div", { class: "tools" },
      make("button", { onclick: () => download(chart.id + ".csv", "text/csv", csvOf(chart)) }, "CSV"),
      make("button", { onclick: () => download(chart.id + ".vl.json", "application/json", spec()) }, "Specification"),
      make("button", { onclick: () => downloadPicture(chart, lines, "svg") }, "SVG"),
      make("button", { onclick: () => downloadPicture(chart, lines, "png") }, "PNG")),
    table,
    make("figcaption", {}, "From ", make("code", {}, chart.file), ...(chart.command ? [", written by ", make("code", {}, chart.command)] : [])));
  return { element, draw: () => draw(chart, plot, lines) };
}

function inPyTorch({ levels, where, call, remarks }) {
  return [
    levels && make("p", {}, levels),
    call && make("p", {}, `${where}: `, make("code", {}, call)),
    remarks && make("p", {}, remarks),
  ];
}

function verdictCard(verdict) {
  const pays = verdict.codec !== "";
  return make("article", { class: pays ? "verdict pays" : "verdict" },
    make("div", { class: "place" }, make("strong", {}, `On ${verdict.network} with ${verdict.ranks} ranks`)),
    make("div", { class: "place" }, verdict.meaning),
    make("p", { class: "answer" }, verdict.answer),
    pays ? make("div", { class: "gain" }, `${verdict.speedup.toFixed(2)} times faster than uncompressed`) : null,
    make("p", {}, verdict.reasons),
    ...inPyTorch(verdict.in_pytorch),
    verdict.others.length ? make("details", {}, make("summary", {}, "Why not the others"),
      make("ul", {}, ...verdict.others.map(text => make("li", {}, text)))) : null);
}

function jobCard([bound, collectives]) {
  return make("article", { class: "verdict job" },
    make("div", { class: "place" }, make("strong", {}, "Your job, by its trace")),
    make("p", { class: "gain" }, bound),
    make("p", {}, collectives));
}

function missingList(missing) {
  return make("div", {}, make("h3", {}, "Not here"), make("ul", {}, ...missing.map(one =>
    make("li", {}, `${one.title}: ${one.why}. Add it with `, make("code", {}, one.needs)))));
}

function section(content, index) {
  const name = { bench: "Bench: ", training: "Training: ", analysis: "Gradients: " }[content.kind];
  const children = [make("h2", {}, name + content.title)];
  if (content.job.length) children.push(make("div", { class: "verdicts" }, jobCard(content.job)));
  if (content.verdicts.length) {
    children.push(make("div", { class: "verdicts" }, ...content.verdicts.map(verdictCard)));
  } else if (content.kind === "bench") {
    children.push(make("p", { class: "failed" }, "No network was modelled, so there is no verdict: see what is missing below."));
  }
  if (content.by_speed) children.push(make("p", { class: "by-speed" }, content.by_speed));
  children.push(...content.basis.map(text => make("p", { class: "basis" }, text)));
  if (content.notes.length) {
    children.push(make("details", { open: content.notes.length <= 5 }, make("summary", {}, `Left out or failed (${content.notes.length})`),
      make("ul", { class: "failed" }, ...content.notes.map(text => make("li", {}, text)))));
  }
  const figures = content.charts.map(figure);
  children.push(...figures.map(one => one.element));
  if (content.missing.length) children.push(missingList(content.missing));
  return { element: make("section", { id: "section" + (index + 1) }, ...children), figures, title: name + content.title };
}

function fileCard(file) {
  const facts = [["SHA-256", file.sha256], ...file.facts.map(fact => [fact.label, fact.text])];
  return make("div", { class: "file" }, make("strong", {}, make("code", {}, file.path)), ` (${file.kind})`,
    make("dl", {}, ...facts.flatMap(([label, text]) => [make("dt", {}, label), make("dd", {}, make("code", {}, text))])));
}

function themeButton() {
  const order = ["auto", "light", "dark"];
  let at = 0;
  const button = make("button", { onclick: () => {
    at = (at + 1) % order.length;
    if (order[at] === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = order[at];
    button.textContent = "Theme: " + order[at];
  } }, "Theme: auto");
  return button;
}

async function start() {
  const sections = page.sections.map(section);
  document.getElementById("about").append(`Made by gradtool ${page.gradtool} on ${page.created} with `, make("code", {}, page.command),
    ". The page needs no network and asks for nothing.");
  document.getElementById("main").append(...sections.map(one => one.element));
  document.getElementById("contents").append(
    ...sections.map((one, i) => make("a", { href: "#section" + (i + 1) }, one.title)),
    make("a", { href: "#provenance" }, "Where this comes from"), make("a", { href: "#glossary" }, "Words"), themeButton());
  const files = document.getElementById("files");
  files.append(...page.files.map(fileCard));
  if (page.ignored.length) files.append(make("ul", {}, ...page.ignored.map(text => make("li", {}, "Left out: " + text))));
  const figures = sections.flatMap(one => one.figures);
  let narrow = isNarrow();
  const drawAll = async () => { for (const one of figures) await one.draw(); };
  await drawAll();
  window.addEventListener("resize", () => { if (isNarrow() !== narrow) { narrow = isNarrow(); drawAll(); } });
  document.documentElement.dataset.drawn = figures.length;  // for tests: every chart is there
}

start();
