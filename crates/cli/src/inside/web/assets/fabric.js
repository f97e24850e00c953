// Fabrics that run (`feroce fabric up`): hosts and switches, the links between them with what waits
// in front of each and whether it is paused, and a table of all ports.

import { element, scaled } from "./charts.js";

const ROW = 110;
const [WIDTH, HEIGHT] = [126, 34];
const MOST_NODES = 200;
let before = new Map();

const droppedAt = (port) => port.dropped.reduce((sum, [, count]) => sum + count, 0);

const dropsOf = (dropped) => dropped.filter(([, count]) => count > 0)
  .map(([reason, count]) => `${count} ${reason}`).join(", ") || "none";

const nodeOf = (port) => port.slice(0, port.lastIndexOf(":"));

// Rows of nodes: hosts at the bottom, and each switch above those that are closer to a host.
function rowsOf(ports, hosts) {
  const next = new Map();
  for (const { port, peer } of ports) {
    const [a, b] = [nodeOf(port), nodeOf(peer)];
    for (const name of [a, b]) if (!next.has(name)) next.set(name, new Set());
    next.get(a).add(b);
    next.get(b).add(a);
  }
  let row = [...next.keys()].filter((name) => hosts.has(name));
  const seen = new Set(row);
  const rows = [];
  while (row.length > 0) {
    rows.push(row);
    row = [...new Set(row.flatMap((name) => [...next.get(name)]))].filter((name) => !seen.has(name));
    row.forEach((name) => seen.add(name));
  }
  const rest = [...next.keys()].filter((name) => !seen.has(name));
  if (rest.length > 0) rows.push(rest);
  return rows.reverse();
}

function draw(svg, status, then) {
  svg.replaceChildren();
  const hosts = new Map(status.hosts.map((host) => [host.name, host]));
  const rows = rowsOf(status.ports, hosts);
  const all = rows.flat();
  svg.style.height = `${all.length > MOST_NODES ? 0 : rows.length * ROW}px`;
  if (all.length > MOST_NODES) return;
  const { width } = svg.getBoundingClientRect();
  const widest = Math.max(...rows.map((row) => row.length));
  const places = new Map();
  rows.forEach((row, y) => row.forEach((name, x) => {
    places.set(name, { x: ((x + 0.5) * width) / row.length, y: (y + 0.5) * ROW });
  }));
  const most = Math.max(1, ...status.ports.map((port) => port.queue_max));
  const [drawn, dropping] = [[], []];
  for (const port of status.ports) {
    const [a, b] = [places.get(nodeOf(port.port)), places.get(nodeOf(port.peer))];
    const was = then && then.ports.find((each) => each.port === port.port);
    const isPaused = was !== undefined && port.paused_us > was.paused_us;
    const state = !port.is_up ? " down" : isPaused ? " paused" : port.queued > 0 ? " queued" : "";
    // Half of the link belongs to each of its two ports.
    const middle = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    const ends = { x1: a.x, y1: a.y, x2: middle.x, y2: middle.y };
    const line = element(svg, "line", { class: `cable${state}`, ...ends });
    element(line, "title", {}, `${port.port} to ${port.peer}: ${port.note
      || `${scaled(port.queued, "B")} wait, ${port.pauses} pauses`}, dropped: ${dropsOf(port.dropped)}`);
    if (port.queued > 0) drawn.push([port, a, middle]);
    const drops = droppedAt(port) - (was ? droppedAt(was) : droppedAt(port));
    if (drops > 0) dropping.push([drops, a, middle]);
  }
  for (const [name, { x, y }] of places) {
    const host = hosts.get(name);
    const wide = Math.min(WIDTH, width / widest - 6);
    const place = { x: x - wide / 2, y: y - HEIGHT / 2, width: wide, height: HEIGHT };
    const node = element(svg, "rect", { class: "node", rx: host ? 4 : 14, ...place });
    if (host && host.title) element(node, "title", {}, host.title);
    const shown = host && host.shown ? host.shown : name;
    element(svg, "text", { x, y: y + (host ? -1 : 4), "text-anchor": "middle" }, shown);
    if (host) {
      const note = [host.address, ...(host.processes ? [`${host.processes} proc.`] : [])].join(", ");
      element(svg, "text", { class: "soft", x, y: y + 11, "text-anchor": "middle" }, note);
    }
  }
  // What waits at a port, as a bar on its half of the link: full is the most of any port so far.
  for (const [port, a, middle] of drawn) {
    const [x, y] = [a.x + (middle.x - a.x) * 0.7, a.y + (middle.y - a.y) * 0.7];
    const bar = Math.max(2, (34 * port.queued) / most);
    element(svg, "rect", { class: "fill", x: x - 4, y: y - bar / 2, width: 8, height: bar });
    element(svg, "text", { class: "soft halo", x: x + 8, y: y + 4 }, scaled(port.queued, "B"));
  }
  // What a port has dropped since the page was last drawn, next to the node that it belongs to.
  for (const [drops, a, middle] of dropping) {
    const [x, y] = [a.x + (middle.x - a.x) * 0.45, a.y + (middle.y - a.y) * 0.45];
    element(svg, "text", { class: "bad halo", x: x + 8, y: y + 4 }, `\u2715 ${drops}`);
  }
}

// An InfiniBand fabric in the same form. A link that no subnet manager has made active is down.
function ofSubnet(status) {
  const hosts = status.nodes.filter((node) => !node.is_switch).map((node) => ({
    name: node.name,
    shown: node.has_sm ? `${node.name} (SM)` : node.name,
    title: `${node.name}: ${node.programs} programs${node.has_sm ? ", a subnet manager runs" : ""}`,
    address: [`LID ${node.lid}`, ...(node.address ? [node.address] : [])].join(", "),
  }));
  const ports = status.nodes.flatMap((node) => node.ports).filter((port) => port.peer)
    .map((port) => ({ ...port, queued: 0, queue_max: 0, paused_us: 0, is_up: port.state === "active",
      note: `${port.state}, ${port.packets_sent} packets sent`, dropped: [["discarded", port.discards]] }));
  return { ...status, hosts, ports };
}

function cells(parent, kind, values) {
  const tr = document.createElement("tr");
  values.forEach((value, at) => {
    const cell = document.createElement(kind);
    cell.textContent = value;
    if (at > 1) cell.className = "number";
    tr.append(cell);
  });
  parent.append(tr);
}

function fill(table, status, then) {
  const made = document.createDocumentFragment();
  cells(made, "th", ["Port", "To", "Rate", "Passes", "Waits", "Most", "Pauses", "Paused", "Marked",
    "Dropped", "Loss", "Link"]);
  const seconds = then ? status.seconds - then.seconds : 0;
  for (const port of status.ports.slice(0, MOST_NODES)) {
    const was = then && then.ports.find((each) => each.port === port.port);
    const bits = was && seconds > 0 ? (8 * (port.bytes - was.bytes)) / seconds : 0;
    const paused = was && seconds > 0 ? (port.paused_us - was.paused_us) / 1e4 / seconds : 0;
    cells(made, "td", [port.port, port.peer, scaled(port.rate_bps, "b/s"), scaled(bits, "b/s"),
      scaled(port.queued, "B"), scaled(port.queue_max, "B"), port.pauses,
      `${paused.toFixed(1)}\u202f%`, port.marked, droppedAt(port),
      `${(port.loss * 100).toFixed(2)}\u202f%`,
      port.is_up ? "up" : "down"]);
  }
  table.replaceChildren(made);
}

function fillSubnet(table, status, then) {
  const made = document.createDocumentFragment();
  cells(made, "th", ["Port", "To", "Link", "Sends", "Sent", "Received", "Discarded"]);
  const seconds = then ? status.seconds - then.seconds : 0;
  for (const port of status.ports.slice(0, MOST_NODES)) {
    const was = then && then.ports.find((each) => each.port === port.port);
    const rate = was && seconds > 0 ? (port.packets_sent - was.packets_sent) / seconds : 0;
    cells(made, "td", [port.port, port.peer, port.state, scaled(rate, "/s"), port.packets_sent,
      port.packets_received, port.discards]);
  }
  table.replaceChildren(made);
}

function panel(parent, key) {
  const made = document.createElement("section");
  made.dataset.fabric = key;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const parts = ["h2", "p", "table"].map((kind) => document.createElement(kind));
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.append(parts[2]);
  parts[1].className = "none";
  made.append(parts[0], parts[1], svg, scroll);
  parent.append(made);
  return made;
}

export function showFabrics(parent, fabrics) {
  const now = new Map();
  const panels = new Map([...parent.children].map((each) => [each.dataset.fabric, each]));
  for (const { kind, status, name, error } of fabrics) {
    const key = status ? `${status.name} ${status.pid}` : name;
    const made = panels.get(key) || panel(parent, key);
    panels.delete(key);
    const [title, note, svg, table] = ["h2", "p", "svg", "table"].map((tag) => made.querySelector(tag));
    title.textContent = `Fabric ${status ? status.name : name}`;
    if (!status) {
      note.textContent = error;
      continue;
    }
    if (kind === "infiniband") {
      const shown = ofSubnet(status);
      const up = shown.ports.filter((port) => port.is_up).length;
      note.textContent = `InfiniBand, process ${status.pid}: ${status.nodes.length} nodes, ${up} of `
        + `${shown.ports.length} ports active, ${status.dropped} datagrams that programs did not take.`;
      draw(svg, shown, before.get(key));
      fillSubnet(table, shown, before.get(key));
      now.set(key, shown);
      continue;
    }
    note.textContent = `Process ${status.pid}, ${status.delivered} packets delivered, dropped: `
      + `${dropsOf(status.dropped)}; slowed by ${(status.slowed * 100).toFixed(2)} %.`;
    draw(svg, status, before.get(key));
    fill(table, status, before.get(key));
    now.set(key, status);
  }
  panels.forEach((each) => each.remove());
  before = now;
}
