// The parse tree: patches of the image below, capsules above, and between them how strongly each patch is coupled.
// Which patches are shown is decided by the last round, so that they stay in place while one steps through the rounds.

import { $, format, hideTip, showTip, svg } from "./dom.js";
import { centre } from "./heat.js";
import { clamp } from "./layers.js";

const HEIGHT = 300;
const WIDTHS = [320, 1100];
const LEAF = 46;
const PATCH = 9;
const SHORT = 2;
const NARROW = 240;

export function drawTree(holder, view) {
  const { answer, about, see, round } = view;
  const shown = answer.parents.slice(0, Math.max(2, about.objects)).map((label, at) => ({ label, at }));
  const width = clamp(holder.clientWidth, WIDTHS);
  const leaves = chooseLeaves(view, shown, Math.floor(width / LEAF));
  const gap = width / leaves.length;
  const parentX = (k) => (width * (k + 0.5)) / shown.length;
  const size = Math.min(gap - 8, 54);
  const cells = answer.cells[round];
  const top = Math.max(0.2, ...answer.cells.flatMap(({ coupling }) => shown.flatMap(({ at }) => leaves.map((place) => coupling[at][place]))));
  const source = $("canvas").toDataURL();

  const edges = leaves.flatMap((place, k) =>
    shown.map(({ label, at }, p) => {
      const coupling = cells.coupling[at][place];
      const [x0, y0, x1, y1] = [gap * (k + 0.5), HEIGHT - size - 10, parentX(p), 74];
      const words =
        `Row ${Math.floor(place / view.grid.columns) + 1}, column ${(place % view.grid.columns) + 1} to ${about.classes[label]}: ` +
        `coupling ${format(coupling, 3)}, agreement ${format(cells.agreement[at][place], 3)}`;
      return svg("path", {
        d: `M${x0},${y0} C${x0},${(y0 + y1) / 2} ${x1},${(y0 + y1) / 2} ${x1},${y1}`,
        class: `edge tone-${see.toneOf(label)}`,
        "stroke-width": (0.5 + 7 * (coupling / top) ** 2).toFixed(2), "stroke-opacity": (0.08 + 0.85 * (coupling / top) ** 2).toFixed(2),
        onpointermove: (event) => tell(event, words), onpointerleave: hideTip,
      });
    }),
  );
  const patches = leaves.map((place, k) => patch(view, place, gap * (k + 0.5) - size / 2, size, source));
  const isShort = shown.every(({ label }) => about.classes[label].length <= SHORT);
  const word = about.matrices ? "activation" : "length";
  const heads = shown.map(({ label }, p) => {
    const length = answer.iterations[round].lengths[label];
    const [x, cy, radius] = isShort ? [parentX(p), 40, 18 + 14 * length] : [parentX(p), 50, 10 + 12 * length];
    const name = isShort
      ? svg("text", { x, y: 47, "text-anchor": "middle" }, about.classes[label])
      : svg("text", { x, y: 18, "text-anchor": "middle", class: "name" }, cut(about.classes[label], width / shown.length / 9.5));
    return svg(
      "g", { class: `head tone-${see.toneOf(label)}` },
      svg("circle", { cx: x, cy, r: radius.toFixed(1), "fill-opacity": (0.15 + 0.85 * length).toFixed(2) }),
      name,
      svg("text", { x: x + (isShort ? 42 : 30), y: cy + 5, class: "note" }, `${width / shown.length < NARROW ? "" : word} ${format(length)}`),
    );
  });
  const names = shown.map(({ label }) => about.classes[label]).join(" and ");
  holder.replaceChildren(
    svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${leaves.length} patches of the picture, coupled to ${names}` }, ...edges, ...patches, ...heads),
  );
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

function tell(event, words) {
  $("readout").textContent = words;
  showTip(event, words);
}

// The patches that contribute most in the last round, those of the first capsule to the left.
function chooseLeaves({ answer, grid }, shown, most) {
  const last = answer.cells.at(-1);
  const places = Array.from({ length: grid.rows * grid.columns }, (_, place) => place);
  const gain = (place) => Math.max(...shown.map(({ at }) => last.agreement[at][place]));
  const lean = (place) => last.coupling[shown[0].at][place] - last.coupling[shown[1].at][place];
  const kept = places.sort((a, b) => gain(b) - gain(a)).slice(0, most);
  return kept.sort((a, b) => lean(b) - lean(a));
}

function patch({ grid, about }, place, x, size, source) {
  const [, h, w] = about.image;
  const centreX = centre(grid.left, grid, place % grid.columns);
  const centreY = centre(grid.top, grid, Math.floor(place / grid.columns));
  const side = Math.max(PATCH, 1.5 * grid.step);
  return svg(
    "svg",
    { x, y: HEIGHT - size - 6, width: size, height: size, viewBox: `${centreX - side / 2} ${centreY - side / 2} ${side} ${side}` },
    svg("rect", { x: -w, y: -h, width: 3 * w, height: 3 * h, class: "paper" }),
    svg("image", { href: source, width: w, height: h, class: "crisp" }),
  );
}
