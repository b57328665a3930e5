// A value for each place of the grid of primary capsules, drawn over the part of the image that it sits on.

import { $, format, hideTip, make, showTip } from "./dom.js";
import { BLUE, paint } from "./pixels.js";

const SCALE = 10;
const DIM = 0.55;
const COLD = [120, 150, 255];

// One number for each place: the mean over the capsule types there, weighted by how active each is, or their sum.
export function overGrid(values, weights, types, places) {
  return Array.from({ length: places }, (_, place) => {
    let [sum, total] = [0, 0];
    for (let type = 0; type < types; type++) {
      const weight = weights ? weights[type * places + place] : 1;
      sum += weight * values[type * places + place];
      total += weight;
    }
    return weights ? sum / (total || 1) : sum;
  });
}

// EM routing and its relatives agree by a log density, for which zero means nothing.
export const isDensity = (about) => about.routing.agreement === "log density";

// The value without colour: of couplings an equal share, of densities the mean of the round.
function middle({ about, answer, at }, kind, round) {
  if (kind === "coupling") return 1 / about.classes.length;
  const values = answer.cells[round].agreement[at];
  return isDensity(about) ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
}

// On one scale for all rounds, so that one sees how couplings grow apart.
function largest(view, kind) {
  const apart = (cells, round) => cells[kind][view.at].map((value) => Math.abs(value - middle(view, kind, round)));
  return Math.max(0.02, ...view.answer.cells.flatMap(apart));
}

// The input, dimmed, a pixel a pixel: all maps of one image are drawn over it.
const dimmed = { canvas: document.createElement("canvas"), image: null };

function ground({ about, image }) {
  if (dimmed.image !== image) paint(dimmed.canvas, about.image, image, DIM);
  dimmed.image = image;
  return dimmed.canvas;
}

export function drawHeat(canvas, view, kind, scale = SCALE, marked = -1) {
  const { about, grid, answer, at, round } = view;
  const [, h, w] = about.image;
  Object.assign(canvas, { width: w * scale, height: h * scale });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(ground(view), 0, 0, canvas.width, canvas.height);
  const colour = view.see.colourOf(view.chosen) ?? BLUE;
  const [from, top] = [middle(view, kind, round), largest(view, kind)];
  answer.cells[round][kind][at].forEach((value, place) => {
    const [x, y] = corner(grid, place);
    const strength = (value - from) / top;
    context.fillStyle = `rgba(${(strength < 0 ? COLD : colour).join()},${0.06 + 0.8 * Math.abs(strength)})`;
    context.fillRect(x * scale, y * scale, grid.step * scale - 1, grid.step * scale - 1);
    if (place === marked) {
      context.strokeStyle = "#fff";
      context.lineWidth = 3;
      context.strokeRect(x * scale + 1, y * scale + 1, grid.step * scale - 3, grid.step * scale - 3);
    }
  });
}

// In pixels, along one axis of the image.
export function centre(from, { start, step }, index) {
  return from + start + 0.5 + index * step;
}

function corner(grid, place) {
  const [row, column] = [Math.floor(place / grid.columns), place % grid.columns];
  return [centre(grid.left, grid, column) - grid.step / 2, centre(grid.top, grid, row) - grid.step / 2];
}

export function describe({ about, answer, at, round, grid }, place) {
  const [row, column] = [Math.floor(place / grid.columns) + 1, (place % grid.columns) + 1];
  const { coupling, agreement } = answer.cells[round];
  const places = grid.rows * grid.columns;
  const active = Math.max(...Array.from({ length: grid.types }, (_, type) => answer.activations[type * places + place]));
  const name = about.classes[answer.parents[at]];
  return (
    `Row ${row}, column ${column}, to ${name}: coupling ${format(coupling[at][place], 3)}, ` +
    `agreement ${format(agreement[at][place], 3)}; its strongest part has length ${format(active)}`
  );
}

export class Heat {
  constructor(holder, about, kind, getView) {
    Object.assign(this, { about, kind, getView, marked: -1 });
    this.canvas = make("canvas", { role: "application", tabindex: "0", "aria-roledescription": "map; arrow keys move" });
    this.scale = make("span", { class: "scale" });
    holder.append(this.canvas, this.scale);
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#mark(-1));
    this.canvas.addEventListener("blur", () => this.#mark(-1));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  show() {
    const view = this.getView();
    if (!view) return;
    drawHeat(this.canvas, view, this.kind, SCALE, this.marked);
    const [from, top] = [middle(view, this.kind, view.round), largest(view, this.kind)];
    this.scale.textContent = `${format(from)} … ${format(from + top)}`;
    this.canvas.setAttribute("aria-label", `${this.kind} to ${view.about.classes[view.chosen]} over the picture, round ${view.round + 1}`);
  }

  #mark(place) {
    this.marked = place;
    if (place < 0) hideTip();
    else $("readout").textContent = describe(this.getView(), place);
    this.show();
  }

  #point(event) {
    const view = this.getView();
    if (!view) return;
    const { grid } = view;
    const box = this.canvas.getBoundingClientRect();
    const [, h, w] = this.about.image;
    const [left, top] = corner(grid, 0);
    const column = Math.floor((((event.clientX - box.left) / box.width) * w - left) / grid.step);
    const row = Math.floor((((event.clientY - box.top) / box.height) * h - top) / grid.step);
    const isInside = row >= 0 && column >= 0 && row < grid.rows && column < grid.columns;
    const place = isInside ? row * grid.columns + column : -1;
    if (place !== this.marked) this.#mark(place);
    if (isInside) showTip(event, describe(view, place));
  }

  #key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const view = this.getView();
    if (!step || !view) return;
    event.preventDefault();
    const { rows, columns } = view.grid;
    const row = this.marked < 0 ? 0 : Math.floor(this.marked / columns) + step[0];
    const column = this.marked < 0 ? 0 : (this.marked % columns) + step[1];
    this.#mark(Math.min(rows - 1, Math.max(0, row)) * columns + Math.min(columns - 1, Math.max(0, column)));
  }
}
