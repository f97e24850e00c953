// The last packets of a queue pair, from top to bottom: the queue pair on the left, its peer on the
// right, an arrow for each packet.

import { duration, element } from "./charts.js";

const STEP = 20;
const MOST = 40;

// Draws what the server found: {refusal, recorded, steps: [{at_ns, is_sent, label, notes, kind}]}.
export function ladder(svg, note, found, ends) {
  svg.replaceChildren();
  const steps = found.steps.slice(-MOST);
  note.textContent = found.refusal || (steps.length === 0 ? "Waiting for packets."
    : `${found.recorded} packets since you began to watch; the last ${steps.length}.`);
  svg.style.height = `${steps.length === 0 ? 0 : (steps.length + 2) * STEP}px`;
  if (steps.length === 0) return;
  const { width } = svg.getBoundingClientRect();
  const [left, right] = [90, width - 8];
  const bottom = (steps.length + 1.5) * STEP;
  for (const [x, anchor, name] of [[left, "start", ends[0]], [right, "end", ends[1]]]) {
    element(svg, "text", { x, y: 13, "text-anchor": anchor }, name);
    element(svg, "line", { class: "lifeline", x1: x, x2: x, y1: STEP, y2: bottom });
  }
  steps.forEach((step, index) => {
    const y = (index + 2) * STEP;
    const [from, to] = step.is_sent ? [left, right] : [right, left];
    const tip = step.is_sent ? -7 : 7;
    const time = { class: "soft", x: left - 10, y: y + 4, "text-anchor": "end" };
    element(svg, "text", time, duration(step.at_ns - steps[0].at_ns || 0));
    const group = element(svg, "g", { class: `step ${step.kind}` });
    const text = [step.label, ...step.notes].join(" · ");
    element(group, "title", {}, text);
    element(group, "line", { x1: from, x2: to, y1: y, y2: y });
    element(group, "path", { d: `M${to},${y} l${tip},-4 v8 z` });
    const x = step.is_sent ? left + 14 : right - 14;
    const anchor = step.is_sent ? "start" : "end";
    element(group, "text", { x, y: y - 3, "text-anchor": anchor }, text);
  });
}
