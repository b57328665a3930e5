// Panel 2: the capsules' lengths, and what each of the longest redraws.

import { Channel } from "./channel.js";
import { $, format, make, notice } from "./dom.js";
import { GREEN, RED, paint, paintOver, paintTinted } from "./pixels.js";

export const COLOURS = [RED, GREEN];
const PRESENT = 0.5;
// Nobody reads more bars than this: of many classes the longest are shown, in the order of the classes.
const MOST_BARS = 24;
const BARS_OF_MANY = 12;
const LONGEST_NAME = 26;

export class See extends EventTarget {
  constructor(state, compose) {
    super();
    Object.assign(this, { state, compose, answer: null, slots: [], isFolded: state.about.classes.length > MOST_BARS });
    this.looks = new Channel((image) => state.engine.look(image), (...given) => this.#show(...given), notice);
    this.#makeBars();
    this.tiles = this.#makeTiles();
    state.addEventListener("picture", () => this.looks.ask(this.compose.image));
    state.addEventListener("choice", () => this.#mark());
    $("see-says").textContent = this.#words();
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
    return at >= 0 ? (this.answer.pictures?.[at] ?? null) : null;
  }

  #words() {
    const { dimensions, matrices, decoder } = this.state.about;
    if (!dimensions) return "Each bar is the probability that the network gives a class. This network has no capsules to look into.";
    if (matrices) return "Each bar is the activation of one capsule: how sure it is that its class is in the picture.";
    if (!decoder) return "Each bar says how sure a capsule is that its class is in the picture.";
    return "Each bar is the length of one capsule’s arrow. The network can redraw what a capsule sees from its arrow alone.";
  }

  #makeBars() {
    const { classes } = this.state.about;
    this.rows = classes.map((label, index) => this.#row(label, index));
    const longest = Math.max(...classes.map((label) => label.length));
    // One width for all names, so that all bars begin at the same place.
    $("bars").style.setProperty("--names", `${Math.min(longest, LONGEST_NAME) + 1}ch`);
    $("bars").append(...this.rows.map((row) => row.button));
    if (!this.isFolded) return;
    const [all, few] = [`Show all ${classes.length} classes`, `Show the ${BARS_OF_MANY} longest`];
    const toggle = make("button", {
      class: "fold",
      onclick: () => {
        this.isFolded = !this.isFolded;
        toggle.textContent = this.isFolded ? all : few;
        this.#mark();
      },
    }, all);
    $("bars").after(toggle);
  }

  #row(label, index) {
    const fill = make("span", { class: "fill" });
    const value = make("span", { class: "value" });
    const button = make(
      "button",
      { class: "bar", "aria-pressed": "false", title: label.length > LONGEST_NAME ? label : null, onclick: () => this.#choose(index) },
      make("span", { class: "label" }, label),
      make("span", { class: "track" }, fill),
      value,
    );
    return { button, fill, value };
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
    const { lengths } = this.answer;
    const byLength = lengths.map((_, index) => index).sort((a, b) => lengths[b] - lengths[a]);
    const shown = new Set([this.chosen, ...byLength.slice(0, this.isFolded ? BARS_OF_MANY : lengths.length)]);
    this.rows.forEach(({ button }, index) => {
      button.hidden = !shown.has(index);
      button.dataset.tone = this.slots.includes(index) ? this.toneOf(index) : "";
      button.setAttribute("aria-pressed", String(index === this.chosen));
    });
  }

  #say(milliseconds) {
    const { classes, dimensions, matrices } = this.state.about;
    const name = (label) => make("b", { class: `tone-${this.toneOf(label)}` }, classes[label]);
    const sure = this.slots.filter((label) => this.answer.lengths[label] >= PRESENT);
    const words = sure.length
      ? ["It sees ", ...sure.flatMap((label, k) => (k ? [" and ", name(label)] : [name(label)])), "."]
      : ["It finds none of its classes in this picture."];
    const text = words.map((word) => word.textContent ?? word).join("");
    if (text !== $("verdict").textContent) $("verdict").replaceChildren(...words);
    const kind = dimensions ? `${matrices ? "More" : "Longer"} than 0.5 counts as present. ` : "";
    $("bars-legend").textContent = `${kind}Answered in ${Math.round(milliseconds)}\u00a0ms${this.answer.by ? ` by ${this.answer.by}` : ""}.`;
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
    if (about.decoder) $("tiles").append(tiles.over.figure, ...tiles.alone.map((one) => one.figure));
    return tiles;
  }

  #drawTiles() {
    const { about } = this.state;
    if (!about.decoder) return;
    const isColour = about.image[0] === 3;
    const sure = this.slots.filter((label) => this.answer.lengths[label] >= PRESENT);
    const pictures = sure.map((label) => this.pictureOf(label));
    paintOver(this.tiles.over.canvas, about.image, this.image, pictures, sure.map((label) => this.colourOf(label)));
    const words = isColour ? "Redrawn, and mixed with the input" : about.objects > 1 ? "Redrawn in red and green, over the input" : "Redrawn in red, over the input";
    this.tiles.over.caption.textContent = words;
    this.tiles.over.canvas.setAttribute("aria-label", words);
    this.slots.forEach((label, k) => {
      const { canvas, caption, figure } = this.tiles.alone[k];
      const text = `What capsule ${about.classes[label]} sees`;
      const isSure = sure.includes(label);
      if (isColour) paint(canvas, about.image, this.pictureOf(label));
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
