// Asks the server every second what the devices do, and draws the rates between two answers.
// Nothing is asked while the page is hidden.

import { chart, duration, scaled, topology } from "./charts.js";
import { showFabrics } from "./fabric.js";
import { showFaults } from "./faults.js";
import { ladder } from "./ladder.js";

const INTERVAL_MS = 1000;
const SPAN_S = 120;
const MOST_ROWS = 200;

const byId = (id) => document.getElementById(id);
const history = { out: [], in: [], median: [], longest: [], retransmitted: [], dropped: [] };
let before = new Map();
let isPaused = false;
// The queue pair whose packets are shown: {pid, device, qpn}.
let watched = null;

const keyOf = (device) => `${device.pid} ${device.device}`;
const sum = (values) => values.reduce((all, value) => all + value, 0);
const sumOf = (counters) => sum(Object.values(counters));
const hex = (qpn) => `0x${qpn.toString(16).padStart(6, "0")}`;
const address = (peer) => `${peer.address} ${hex(peer.qpn)}`;

// What a device did per second since the last answer; zero in the first one.
function ratesOf(device) {
  const was = before.get(keyOf(device));
  const seconds = was ? (device.age_ns - was.age_ns) / 1e9 : 0;
  const rate = (now, then) => (seconds > 0 ? Math.max(0, now - then) / seconds : 0);
  const rates = (now, then) => ({
    out: 8 * rate(now.request_bytes, then.request_bytes),
    in: 8 * rate(now.served_bytes, then.served_bytes),
    requests: rate(now.requests, then.requests),
    served: rate(now.served, then.served),
    retransmissions: rate(now.retransmissions, then.retransmissions),
  });
  const zero = { request_bytes: 0, served_bytes: 0, requests: 0, served: 0, retransmissions: 0 };
  const qps = new Map((was ? was.qps : []).map((qp) => [qp.qpn, qp]));
  return {
    ...rates(device.totals, was ? was.totals : zero),
    dropped: rate(sumOf(device.drops), was ? sumOf(was.drops) : 0),
    qps: new Map(device.qps.map((qp) => [qp.qpn, rates(qp, qps.get(qp.qpn) || zero)])),
  };
}

// Fills a table. A column is [heading, a function of a row, whether it is a number]; a cell is a
// text or [text, class]. `prepare` gets the line of each row.
function table(id, columns, rows, empty, prepare = () => {}) {
  const made = document.createDocumentFragment();
  const line = (cells, name) => {
    const tr = document.createElement("tr");
    cells.forEach((cell, at) => {
      const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
      const td = document.createElement(name);
      td.textContent = text;
      td.className = [kind, columns[at] && columns[at][2] ? "number" : ""].join(" ").trim();
      tr.append(td);
    });
    made.append(tr);
    return tr;
  };
  if (rows.length > 0) line(columns.map((column) => column[0]), "th");
  else line([[empty, "none"]], "td");
  for (const row of rows.slice(0, MOST_ROWS)) {
    prepare(line(columns.map((column) => column[1](row)), "td"), row);
  }
  if (rows.length > MOST_ROWS) line([[`and ${rows.length - MOST_ROWS} more`, "none"]], "td");
  byId(id).replaceChildren(made);
}

function showSummary(devices, all) {
  const longest = Math.max(0, ...devices.flatMap((d) => d.qps.map((qp) => qp.rtt_ns)));
  const facts = [
    ["devices", devices.length],
    ["queue pairs", sum(devices.map((device) => device.qps.length))],
    ["memory", scaled(sum(devices.map((device) => device.mr_bytes)), "B")],
    ["out", scaled(all.out, "b/s")],
    ["in", scaled(all.in, "b/s")],
    ["longest round trip", duration(longest)],
    ["retransmissions", scaled(all.retransmissions, "/s")],
  ];
  byId("summary").replaceChildren(...facts.map(([name, value]) => {
    const [fact, dt, dd] = ["div", "dt", "dd"].map((kind) => document.createElement(kind));
    dt.textContent = name;
    dd.textContent = value;
    fact.append(dt, dd);
    return fact;
  }));
}

function showTopology(devices, rates) {
  const owner = new Map();
  const nodes = devices.map((device) => {
    for (const qp of device.qps) {
      for (const ip of device.addresses) owner.set(`${ip} ${qp.qpn}`, keyOf(device));
    }
    const note = `${device.device}, ${device.qps.length} QP${device.qps.length === 1 ? "" : "s"}`;
    return { id: keyOf(device), title: `${device.program} ${device.pid}`, note };
  });
  const flows = new Map();
  for (const device of devices) {
    for (const qp of device.qps.filter((each) => each.peer)) {
      let to = owner.get(`${qp.peer.address} ${qp.peer.qpn}`);
      if (!to) {
        to = `elsewhere ${qp.peer.address}`;
        if (!nodes.some((node) => node.id === to)) {
          nodes.push({ id: to, title: qp.peer.address, note: "not seen from here", elsewhere: true });
        }
      }
      const id = `${keyOf(device)} > ${to}`;
      const flow = flows.get(id) || { from: keyOf(device), to, bits: 0, qps: 0, troubled: false };
      const rate = rates.get(keyOf(device)).qps.get(qp.qpn);
      flow.bits += rate.out;
      flow.qps += 1;
      flow.troubled ||= rate.retransmissions > 0 || qp.state === "ERR" || qp.state === "SQE";
      flows.set(id, flow);
    }
  }
  // What passes in one direction only is drawn once.
  const drawn = [...flows.values()].filter((flow) => {
    const back = flows.get(`${flow.to} > ${flow.from}`);
    return flow.bits > 0 || flow.troubled || !back || (back.bits === 0 && flow.from <= flow.to);
  });
  for (const flow of drawn) {
    flow.title = `${flow.from} → ${flow.to}: ${scaled(flow.bits, "b/s")}, ${flow.qps} QP`;
  }
  topology(byId("topology"), nodes, drawn);
}

const GOOD_STATES = new Set(["RTS", "RTR", "INIT", "RESET", "SQD"]);

function showQps(devices, rates) {
  const rows = devices.flatMap((device) => device.qps.map((qp) => ({
    device, qp, rate: rates.get(keyOf(device)).qps.get(qp.qpn),
  })));
  rows.sort((a, b) => b.rate.out + b.rate.in - a.rate.out - a.rate.in);
  const state = ({ qp }) => [qp.state, GOOD_STATES.has(qp.state) ? "state-good" : "state-bad"];
  table("qps", [
    ["Process", ({ device }) => `${device.pid} ${device.program}`],
    ["QP", ({ qp }) => (qp.qpn === 1 ? "1 (GSI)" : hex(qp.qpn))],
    ["Service", ({ qp }) => qp.type],
    ["State", state],
    ["Peer", ({ qp }) => (qp.peer ? address(qp.peer) : "–")],
    ["Out", ({ rate }) => scaled(rate.out, "b/s"), true],
    ["Requests", ({ rate }) => scaled(rate.requests, "/s"), true],
    ["In", ({ rate }) => scaled(rate.in, "b/s"), true],
    ["Served", ({ rate }) => scaled(rate.served, "/s"), true],
    ["Waiting", ({ qp }) => qp.waiting, true],
    ["Round trip", ({ qp }) => duration(qp.rtt_ns), true],
    ["Window", ({ qp }) => (qp.window ? scaled(qp.window, "B") : "–"), true],
    ["Retransmitted", ({ qp }) => qp.retransmissions, true],
    ["RNR", ({ qp }) => qp.rnr_naks, true],
  ], rows, "No queue pair.", (tr, { device, qp }) => {
    const choose = () => watch({ pid: device.pid, device: device.device, qpn: qp.qpn });
    tr.tabIndex = 0;
    tr.title = "Show its packets";
    tr.classList.toggle("chosen", isWatched(device, qp));
    tr.addEventListener("click", choose);
    tr.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
  });
}

const isWatched = (device, qp) => watched !== null && watched.pid === device.pid
  && watched.device === device.device && watched.qpn === qp.qpn;

// Shows the packets of a queue pair from now on, or of none. The address of the page remembers it.
function watch(which) {
  watched = which;
  const { pid, device, qpn } = which || {};
  window.history.replaceState(null, "", which ? `#${pid}/${qpn}/${device}` : "#");
  byId("packets-panel").hidden = which === null;
  if (which) {
    byId("packets-title").textContent = `Packets of QP ${hex(qpn)}, process ${pid}`;
    byId("packets-note").textContent = "Waiting for packets.";
    byId("packets").replaceChildren();
  }
}

function showPackets(devices, found) {
  if (!watched || !found) return;
  const device = devices.find((each) => each.qps.some((qp) => isWatched(each, qp)));
  const qp = device && device.qps.find((each) => isWatched(device, each));
  const here = `QP ${hex(watched.qpn)} of ${watched.device}`;
  const there = qp && qp.peer ? `peer ${address(qp.peer)}` : "peers";
  ladder(byId("packets"), byId("packets-note"), found, [here, there]);
  if (!qp) return;
  const was = (before.get(keyOf(device)) || { qps: [] }).qps.find((each) => each.qpn === qp.qpn);
  const direct = was ? qp.direct_requests - was.direct_requests : 0;
  if (direct > 0) {
    byId("packets-note").textContent += ` ${direct} requests since the last look were executed in `
      + "the memory of a process of this host, without packets.";
  }
}

// Counters of the adapter that are no trouble: traffic, and how it went.
const HARMLESS = new Set([
  "ack_deferred", "excused_timeouts", "late_ack_requests", "loopback_pkts", "rcvd_bytes",
  "rcvd_pkts", "rdma_recvs", "rdma_sends", "sent_bytes", "sent_pkts", "tail_probes",
]);
const LINK_TROUBLE = /^fault_|lost|error|malformed|foreign|full|nobody|too_long|no_address|bad|icrc_(?!enc)/;

function showEvents(devices) {
  const rows = [];
  for (const device of devices) {
    const was = before.get(keyOf(device));
    const add = (kind, counters, then, isTrouble) => {
      for (const [name, value] of Object.entries(counters)) {
        if (value === 0 || !isTrouble(name)) continue;
        const more = then ? value - (then[name] || 0) : 0;
        rows.push({ device, kind, name, value, more });
      }
    };
    add("dropped", device.drops, was && was.drops, () => true);
    add("adapter", device.counters, was && was.counters, (name) => !HARMLESS.has(name));
    add("link", device.link, was && was.link, (name) => LINK_TROUBLE.test(name));
  }
  rows.sort((a, b) => b.more - a.more || b.value - a.value);
  table("events", [
    ["Process", ({ device }) => `${device.pid} ${device.program}`],
    ["Device", ({ device }) => device.device],
    ["Kind", ({ kind }) => kind],
    ["What", ({ name }) => name],
    ["Times", ({ value }) => value, true],
    ["Since the last look", ({ more }) => (more ? [`+${more}`, "state-bad"] : ""), true],
  ], rows, "Nothing was dropped, and nothing failed.");
}

function showDevices(devices, rates) {
  const states = (device) => {
    const counts = new Map();
    for (const { state } of device.connections) counts.set(state, (counts.get(state) || 0) + 1);
    return [...counts].map(([state, n]) => `${n} ${state}`).join(", ") || "–";
  };
  table("devices", [
    ["Process", (device) => `${device.pid} ${device.program}`],
    ["Device", (device) => device.device],
    ["Addresses", (device) => device.addresses.filter((ip) => ip !== "::").join(", ")],
    ["Faults", (device) => (device.fault === null ? "–"
      : [device.fault, device.fault === "off" ? "" : "state-bad"])],
    ["Open for", (device) => duration(device.age_ns), true],
    ["Out", (device) => scaled(rates.get(keyOf(device)).out, "b/s"), true],
    ["In", (device) => scaled(rates.get(keyOf(device)).in, "b/s"), true],
    ["QPs", (device) => device.qps.length, true],
    ["CQs", (device) => device.cqs.length, true],
    ["MRs", (device) => device.mrs, true],
    ["Memory", (device) => scaled(device.mr_bytes, "B"), true],
    ["Connections", states],
  ], devices, "No open device.");
}

function remember(now, devices, all) {
  const trips = devices.flatMap((device) => device.qps.map((qp) => qp.rtt_ns)).filter((ns) => ns);
  trips.sort((a, b) => a - b);
  const add = (name, value) => {
    history[name].push([now, value]);
    while (history[name][0][0] < now - SPAN_S) history[name].shift();
  };
  add("out", all.out);
  add("in", all.in);
  add("retransmitted", all.retransmissions);
  add("dropped", all.dropped);
  if (trips.length > 0) {
    add("median", trips[Math.floor(trips.length / 2)]);
    add("longest", trips[trips.length - 1]);
  }
}

function showCharts(now) {
  const line = (name, points) => ({ name, points });
  const bits = (value) => scaled(value, "b/s");
  const events = (value) => scaled(value, "/s");
  chart(byId("rates"), [line("out", history.out), line("in", history.in)], SPAN_S, now, bits);
  const trips = [line("median", history.median), line("longest", history.longest)];
  chart(byId("latency"), trips, SPAN_S, now, duration);
  const trouble = [line("retransmitted", history.retransmitted), line("dropped", history.dropped)];
  chart(byId("trouble"), trouble, SPAN_S, now, events);
}

function notice(text) {
  byId("notice").hidden = text === "";
  byId("notice").textContent = text;
}

function show(seen) {
  const { devices, silent } = seen;
  const now = performance.now() / 1000;
  const rates = new Map(devices.map((device) => [keyOf(device), ratesOf(device)]));
  const total = (name) => sum([...rates.values()].map((rate) => rate[name]));
  const all = {
    out: total("out"), in: total("in"),
    retransmissions: total("retransmissions"), dropped: total("dropped"),
  };
  remember(now, devices, all);
  showSummary(devices, all);
  showTopology(devices, rates);
  showCharts(now);
  showFabrics(byId("fabrics"), seen.fabrics);
  showQps(devices, rates);
  showPackets(devices, seen.packets);
  showEvents(devices);
  showDevices(devices, rates);
  showFaults(devices, seen.control);
  before = new Map(devices.map((device) => [keyOf(device), device]));
  if (silent.length > 0) notice(`No answer from process ${silent.join(", ")}: is it stopped?`);
  else if (devices.length > 0) notice("");
  else {
    notice("No process of this user has a device open in this network namespace. Start one, such "
      + "as: feroce rc-pingpong --both -n 1000000");
  }
}

async function look() {
  if (!isPaused && !document.hidden) {
    try {
      const query = watched ? `?${new URLSearchParams(watched)}` : "";
      const answer = await fetch(`look.json${query}`);
      if (!answer.ok) throw new Error(await answer.text());
      show(await answer.json());
    } catch (error) {
      notice(`feroce web does not answer (${error.message}): was it ended?`);
    }
  }
  setTimeout(look, INTERVAL_MS);
}

byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  byId("pause").textContent = isPaused ? "Go on" : "Pause";
});
byId("packets-close").addEventListener("click", () => watch(null));
const [, pid, qpn, device] = /^#(\d+)\/(\d+)\/(.+)$/.exec(window.location.hash) || [];
if (device) watch({ pid: Number(pid), device: decodeURIComponent(device), qpn: Number(qpn) });
look();
