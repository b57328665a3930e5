// Couplings by round: a line for each part, from the first round, where all are equal, to the last.

import { format, hideTip, showTip, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [360, 300, 40, 14, 14, 34];
const MOST_LINES = 400;

export function drawFan(holder, view) {
  const { answer, at, round, about, chosen } = view;
  const rounds = answer.iterations.map((step) => step.couplings[at]);
  const top = niceTop(Math.max(...rounds.flat()));
  const x = (k) => LEFT + ((WIDTH - LEFT - RIGHT) * k) / Math.max(1, rounds.length - 1);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / top;
  const byActivation = answer.activations.map((_, child) => child).sort((a, b) => answer.activations[b] - answer.activations[a]);
  const strongest = answer.activations[byActivation[0]] || 1;
  const lines = byActivation.slice(0, MOST_LINES).map((child) =>
    svg("polyline", {
      points: rounds.map((values, k) => `${x(k).toFixed(1)},${y(values[child]).toFixed(1)}`).join(" "),
      class: "line", "stroke-opacity": (0.06 + 0.5 * (answer.activations[child] / strongest) ** 2).toFixed(2),
    }),
  );
  const levels = [0, top / 2, top];
  const { spread } = answer.iterations[round];
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Couplings of ${lines.length} parts to ${about.classes[chosen]} over ${rounds.length} rounds` },
    ...levels.flatMap((level) => [
      svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(level), y2: y(level), class: "rule" }),
      svg("text", { x: LEFT - 6, y: y(level) + 4, "text-anchor": "end" }, format(level)),
    ]),
    svg("line", { x1: x(round), x2: x(round), y1: TOP, y2: HEIGHT - BOTTOM, class: "now" }),
    ...lines,
    ...rounds.map((_, k) =>
      svg("text", { x: x(k), y: HEIGHT - 12, "text-anchor": "middle", class: k === round ? "strong" : "" }, String(k + 1)),
    ),
  );
  const words = `Round ${round + 1}: the largest coupling to ${about.classes[chosen]} is ${format(Math.max(...rounds[round]), 3)}; ` +
    `on average a part sends its vote to about ${format(spread, 1)} of ${about.classes.length} capsules`;
  drawing.addEventListener("pointermove", (event) => showTip(event, words));
  drawing.addEventListener("pointerleave", hideTip);
  holder.replaceChildren(drawing);
}

const niceTop = (value) => [0.2, 0.4, 0.6, 0.8].find((top) => value <= top) ?? 1;
