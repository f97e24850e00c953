// Lines over time, and the picture of devices and flows. Both are SVG that is built node by node:
// names of programs come from other processes and never become markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(parent, name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// A number with a prefix: 12.3k, 97.5G.
export function scaled(value, unit = "") {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let at = 0;
  while (value >= 999.5 && at + 1 < prefixes.length) { value /= 1000; at += 1; }
  const digits = value === 0 || (at === 0 && Number.isInteger(value)) ? value.toFixed(0)
    : value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
  return `${digits}${unit || prefixes[at] ? "\u202f" : ""}${prefixes[at]}${unit}`;
}

export function duration(ns) {
  if (ns === 0) return "–";
  if (ns < 1e3) return `${ns.toFixed(0)}\u202fns`;
  if (ns < 1e6) return `${(ns / 1e3).toPrecision(3)}\u202fµs`;
  if (ns < 1e9) return `${(ns / 1e6).toPrecision(3)}\u202fms`;
  return `${(ns / 1e9).toPrecision(3)}\u202fs`;
}

// The least of 1, 2, 5, 10, 20 ... that is not below a value.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value * 0.999999);
}

// Draws series over the last `span` seconds. A series has a name and points [seconds, value].
export function chart(svg, series, span, now, show) {
  svg.replaceChildren();
  const { width, height } = svg.getBoundingClientRect();
  const [left, right, top, bottom] = [64, 6, 18, 18];
  const values = series.flatMap((line) => line.points.map((point) => point[1]));
  const most = ceiling(Math.max(...values, 0) || 1);
  const x = (t) => left + (width - left - right) * (1 - (now - t) / span);
  const y = (v) => height - bottom - (height - top - bottom) * (v / most);
  for (const part of [0, 0.5, 1]) {
    const at = y(most * part);
    element(svg, "line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at });
    const label = { class: "soft", x: left - 8, y: at + 4, "text-anchor": "end" };
    element(svg, "text", label, part === 0 ? "0" : show(most * part));
  }
  element(svg, "text", { class: "soft", x: left, y: height - 3 }, `${span} s ago`);
  element(svg, "text", { class: "soft", x: width - right, y: height - 3, "text-anchor": "end" }, "now");
  let keyAt = left;
  series.forEach((line, index) => {
    const shown = line.points.filter(([t]) => t >= now - span);
    if (shown.length > 0) {
      const path = shown.map(([t, v]) => `${x(t).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
      element(svg, "polyline", { class: `line-${index}`, points: path });
    }
    element(svg, "rect", { class: `key-${index}`, x: keyAt, y: 2, width: 10, height: 10, rx: 2 });
    const last = shown.length ? `: ${show(shown[shown.length - 1][1])}` : "";
    const key = element(svg, "text", { x: keyAt + 15, y: 11 }, `${line.name}${last}`);
    keyAt += 15 + Math.max(key.getComputedTextLength(), 60) + 18;
  });
}

// Draws nodes {id, title, note, elsewhere} on an ellipse and flows {from, to, bits, troubled}.
export function topology(svg, nodes, flows) {
  svg.replaceChildren();
  const { width, height } = svg.getBoundingClientRect();
  const isCrowded = nodes.length > 16;
  const box = isCrowded ? [20, 20] : [Math.min(190, width / 3), 46];
  const places = new Map();
  const [across, down] = [width / 2 - box[0] / 2 - 10, height / 2 - box[1] / 2 - 12];
  nodes.forEach((node, index) => {
    const angle = Math.PI * (1 + (2 * index) / nodes.length);
    const isAlone = nodes.length === 1;
    places.set(node.id, {
      x: width / 2 + (isAlone ? 0 : across * Math.cos(angle)),
      y: height / 2 + (isAlone ? 0 : down * Math.sin(angle)),
    });
  });
  const labels = [];
  for (const flow of flows) {
    const [a, b] = [places.get(flow.from), places.get(flow.to)];
    if (!a || !b) continue;
    // The two directions of a pair bend away from each other, to the left of where they go.
    const [dx, dy] = [b.x - a.x, b.y - a.y];
    const length = Math.hypot(dx, dy);
    const bend = Math.min(46, length / 4);
    const middle = flow.from === flow.to
      ? { x: a.x, y: a.y - box[1] * 1.8 }
      : { x: (a.x + b.x) / 2 + (dy / length) * bend, y: (a.y + b.y) / 2 - (dx / length) * bend };
    const line = flow.from === flow.to
      ? `M${a.x - 20},${a.y} C${a.x - 60},${middle.y} ${a.x + 60},${middle.y} ${a.x + 20},${a.y}`
      : `M${a.x},${a.y} Q${middle.x},${middle.y} ${b.x},${b.y}`;
    const state = flow.troubled ? " troubled" : flow.bits > 0 ? "" : " idle";
    const thickness = flow.bits > 0 ? Math.max(1.5, Math.log10(flow.bits) - 3) : 1;
    const path = element(svg, "path", { class: `flow${state}`, d: line, "stroke-width": thickness });
    element(path, "title", {}, flow.title);
    if (flow.bits > 0 && !isCrowded) {
      const forward = dx >= 0 ? [" →", ""] : ["", "← "];
      const text = `${forward[1]}${scaled(flow.bits, "b/s")}${forward[0]}`;
      // Nearer to the sender: flows between opposite nodes cross in the middle.
      const at = (axis) => 0.49 * a[axis] + 0.42 * middle[axis] + 0.09 * b[axis];
      labels.push([text, at("x"), at("y")]);
    }
  }
  for (const node of nodes) {
    const { x, y } = places.get(node.id);
    const group = element(svg, "g");
    element(group, "title", {}, `${node.title}\n${node.note}`);
    const kind = node.elsewhere ? "node elsewhere" : "node";
    const place = { x: x - box[0] / 2, y: y - box[1] / 2, width: box[0], height: box[1], rx: 6 };
    element(group, "rect", { class: kind, ...place });
    if (!isCrowded) {
      const fit = (text) => (text.length > 28 ? `${text.slice(0, 27)}…` : text);
      element(group, "text", { x, y: y - 3, "text-anchor": "middle" }, fit(node.title));
      const note = { class: "soft", x, y: y + 14, "text-anchor": "middle" };
      element(group, "text", note, fit(node.note));
    }
  }
  for (const [text, x, y] of labels) {
    const ground = element(svg, "rect", { class: "label-ground", rx: 3 });
    const label = element(svg, "text", { x, y: y + 4, "text-anchor": "middle" }, text);
    const around = label.getBBox();
    ground.setAttribute("x", around.x - 3);
    ground.setAttribute("y", around.y - 1);
    ground.setAttribute("width", around.width + 6);
    ground.setAttribute("height", around.height + 2);
  }
}
