// Panel 2: the capsules' lengths, and what each of the longest redraws.

import { Channel } from "./api.js";
import { $, format, make, notice } from "./dom.js";
import { GREEN, RED, fromBase64, paint, paintOver, paintTinted, toBase64 } from "./pixels.js";

export const COLOURS = [RED, GREEN];
const PRESENT = 0.5;

export class See extends EventTarget {
  constructor(state, compose) {
    super();
    Object.assign(this, { state, compose, answer: null, baseline: null, slots: [] });
    this.looks = new Channel("look", (answer, image, milliseconds) => this.#show(answer, image, milliseconds), notice);
    this.comparisons = state.about.baseline && new Channel("baseline", (answer) => this.#compare(answer), notice);
    this.rows = state.about.classes.map((label, index) => this.#row(label, index));
    $("bars").append(...this.rows.map((row) => row.button));
    $("bars").classList.toggle("compared", Boolean(this.comparisons));
    this.tiles = this.#makeTiles();
    state.addEventListener("picture", () => this.look());
    state.addEventListener("choice", () => this.#mark());
    if (!state.about.decoder) $("see-says").textContent = "Each bar says how sure a capsule is that its class is in the picture.";
    if (!state.about.dimensions) $("see-says").textContent = "Each bar is the probability that the network gives a class. This network has no capsules to look into.";
  }

  look() {
    const image = this.compose.image;
    const body = { image: toBase64(image) };
    this.looks.ask(body, image);
    this.comparisons?.ask(body);
  }

  // The class that panels 3 and 4 look into: the one that was clicked, else the longest.
  get chosen() {
    return this.state.chosen ?? this.answer?.longest[0] ?? 0;
  }

  colourOf(label) {
    return COLOURS[this.slots.indexOf(label)];
  }

  toneOf(label) {
    return ["red", "green"][this.slots.indexOf(label)] ?? "blue";
  }

  pictureOf(label) {
    const at = this.answer?.longest.indexOf(label) ?? -1;
    return at >= 0 && this.answer.pictures ? fromBase64(this.answer.pictures[at]) : null;
  }

  #row(label, index) {
    const fill = make("span", { class: "fill" });
    const other = make("span", { class: "fill other" });
    const value = make("span", { class: "value" });
    const button = make(
      "button",
      { class: "bar", "aria-pressed": "false", onclick: () => this.#choose(index) },
      make("span", { class: "label" }, label),
      make("span", { class: "track" }, fill, this.comparisons ? other : null),
      value,
    );
    return { button, fill, other, value };
  }

  #choose(index) {
    this.state.chosen = index;
    this.state.nudges.fill(0);
    this.state.change("choice");
  }

  #show(answer, image, milliseconds) {
    this.answer = answer;
    this.image = image;
    this.slots = keepPlaces(this.slots, answer.longest);
    answer.lengths.forEach((length, index) => {
      const { fill, value } = this.rows[index];
      fill.style.width = `${length * 100}%`;
      value.textContent = format(length);
    });
    this.#mark();
    this.#drawTiles();
    this.#say(milliseconds);
    this.dispatchEvent(new Event("look"));
  }

  #mark() {
    if (!this.answer) return;
    this.rows.forEach(({ button }, index) => {
      button.dataset.tone = this.slots.includes(index) ? this.toneOf(index) : "";
      button.setAttribute("aria-pressed", String(index === this.chosen));
    });
  }

  #say(milliseconds) {
    const name = (label) => make("b", { class: `tone-${this.toneOf(label)}` }, this.state.about.classes[label]);
    const sure = this.slots.filter((label) => this.answer.lengths[label] >= PRESENT);
    const words = sure.length
      ? ["It sees ", ...sure.flatMap((label, k) => (k ? [" and ", name(label)] : [name(label)])), "."]
      : ["It finds none of its classes in this picture."];
    const text = words.map((word) => word.textContent ?? word).join("");
    if (text !== $("verdict").textContent) $("verdict").replaceChildren(...words);
    const kind = this.state.about.dimensions ? "Longer than 0.5 counts as present." : "";
    const versus = this.comparisons ? " Thin bars: a plain convolutional network." : "";
    $("bars-legend").textContent = `${kind}${versus} Answered in ${Math.round(milliseconds)} ms.`;
  }

  #compare(answer) {
    this.baseline = answer;
    answer.lengths.forEach((length, index) => (this.rows[index].other.style.width = `${length * 100}%`));
    const names = answer.longest.map((label) => this.state.about.classes[label]).sort();
    this.tiles.baseline.textContent = `The CNN says ${names.join(" and ")}.`;
  }

  #makeTiles() {
    const { about } = this.state;
    const tile = (name) => {
      const canvas = make("canvas", { role: "img" });
      const caption = make("figcaption");
      const figure = make("figure", { "data-tile": name }, canvas, caption);
      return { canvas, caption, figure };
    };
    const tiles = { over: tile("over"), alone: Array.from({ length: about.objects }, (_, k) => tile(`alone-${k}`)) };
    tiles.baseline = make("p", { class: "quiet baseline" });
    if (about.decoder) $("tiles").append(tiles.over.figure, ...tiles.alone.map((one) => one.figure));
    if (this.comparisons) $("tiles").append(tiles.baseline);
    return tiles;
  }

  #drawTiles() {
    const { about } = this.state;
    if (!about.decoder) return;
    const sure = this.slots.filter((label) => this.answer.lengths[label] >= PRESENT);
    const pictures = sure.map((label) => this.pictureOf(label));
    paintOver(this.tiles.over.canvas, about.image, this.image, pictures, sure.map((label) => this.colourOf(label)));
    const words = about.objects > 1 ? "Redrawn in red and green, over the input" : "Redrawn in red, over the input";
    this.tiles.over.caption.textContent = words;
    this.tiles.over.canvas.setAttribute("aria-label", words);
    this.slots.forEach((label, k) => {
      const { canvas, caption, figure } = this.tiles.alone[k];
      const text = `What capsule ${about.classes[label]} sees`;
      const isSure = sure.includes(label);
      if (about.image[0] === 3) paint(canvas, about.image, this.pictureOf(label));
      else paintTinted(canvas, about.image, this.pictureOf(label), this.colourOf(label));
      figure.classList.toggle("faint", !isSure);
      caption.textContent = isSure ? text : `${text} (too short to count)`;
      canvas.setAttribute("aria-label", text);
    });
  }
}

// A class keeps its colour while it stays among the longest, so that nothing flickers during a drag.
function keepPlaces(before, longest) {
  const free = longest.filter((label) => !before.includes(label));
  const kept = longest.map((_, k) => (longest.includes(before[k]) ? before[k] : null));
  return kept.map((label) => label ?? free.shift());
}
