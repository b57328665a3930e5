// Panel 1: put a picture together.

import { Problem } from "./channel.js";
import { $, announce, make, notice } from "./dom.js";
import { attachHandles } from "./handles.js";
import { NEUTRAL, RANGES, clamp, combine, slantWord, stroke, warp } from "./layers.js";
import { paint } from "./pixels.js";

const SLIDERS = [
  { name: "turn", label: "Turn", step: 1, text: (value) => `${Math.round(value)}°` },
  { name: "size", label: "Size", step: 0.01, text: (value) => `${Math.round(value * 100)} %` },
  { name: "slant", label: null, step: 0.01, text: (value) => value.toFixed(2) },
];
const KEYS = {
  ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowUp: ["y", -1], ArrowDown: ["y", 1],
  "[": ["turn", -5], "]": ["turn", 5], "-": ["size", -0.05], "+": ["size", 0.05], "=": ["size", 0.05],
  ",": ["slant", -0.05], ".": ["slant", 0.05],
};

export class Compose {
  constructor(state) {
    this.state = state;
    this.shape = state.about.image;
    this.sampleSize = state.samples.shape ? state.samples.shape.reduce((a, b) => a * b, 1) : 0;
    this.pixels = state.samples.pixels;
    this.image = new Uint8Array(state.length);
    this.cards = $("layers");
    this.#words();
    this.#sliders();
    this.#buttons();
    this.#files();
    this.#drawing();
    this.handles = attachHandles($("handles"), this);
    state.addEventListener("picture", () => {
      if (this.refused) notice("");
      this.refused = false;
      this.render();
    });
    state.addEventListener("selection", () => this.#showControls());
  }

  sample(layer) {
    return this.pixels.subarray(layer.sample * this.sampleSize, (layer.sample + 1) * this.sampleSize);
  }

  get tool() {
    return document.querySelector("input[name=tool]:checked").value;
  }

  render() {
    const { layers, ink, length, about, samples } = this.state;
    const warped = layers.map((layer) => warp(this.sample(layer), samples.shape, layer, this.shape));
    this.image = combine([...warped, ink], length, about.overlay);
    paint($("canvas"), this.shape, this.image);
    this.#showControls();
  }

  move(layer, changes) {
    for (const [name, value] of Object.entries(changes)) layer[name] = clamp(value, RANGES[name]);
    this.state.change("picture");
  }

  select(index) {
    this.state.selected = index;
    this.state.dispatchEvent(new Event("selection"));
  }

  #words() {
    const { about, samples } = this.state;
    const [isColour, isStereo] = [about.image[0] === 3, about.image[0] === 2];
    if (!samples.labels.length) {
      $("compose-says").textContent = `Draw with mouse, finger or pen${isStereo ? "" : ", or upload a picture"}.`;
      $("shuffle").hidden = true;
      document.querySelector("input[name=tool][value=move]").closest("label").hidden = true;
      document.querySelector("input[name=tool][value=draw]").checked = true;
    } else if (about.objects === 1) {
      $("compose-says").textContent = `Drag the picture, turn and stretch it by its handles, or ${isColour ? "upload" : "draw"} your own.`;
    } else if (!about.handwritten) {
      $("compose-says").textContent = "Drag the pictures over each other, turn and stretch them by their handles, or draw your own.";
    }
    if (isStereo) {
      $("compose-says").textContent += " The network sees a picture of each of two cameras; the left one is shown.";
      $("upload").hidden = true;
    }
  }

  #buttons() {
    $("shuffle").addEventListener("click", () => {
      this.#useTool("move");
      this.state.shuffle();
    });
    $("clear").addEventListener("click", () => {
      this.state.clear();
      this.#useTool("draw");
      announce("The canvas is empty.");
    });
    $("tools").addEventListener("change", () => this.#showControls());
    $("upload").addEventListener("click", () => $("file").click());
  }

  #useTool(name) {
    const input = document.querySelector(`input[name=tool][value=${name}]`);
    if (!input.closest("label").hidden) input.checked = true;
  }

  #sliders() {
    this.inputs = SLIDERS.map(({ name, label: given, step, text }) => {
      const [min, max] = RANGES[name];
      const label = given ?? slantWord(this.state.about);
      const value = make("output");
      const input = make("input", {
        type: "range", min, max, step, "aria-label": label,
        oninput: () => this.#current() && this.move(this.#current(), { [name]: Number(input.value) }),
      });
      $("transform").append(make("label", {}, make("span", {}, label), input, value));
      return { name, input, value, text };
    });
  }

  #current() {
    return this.state.layers[this.state.selected];
  }

  #showControls() {
    const { layers, selected } = this.state;
    if (this.cards.childElementCount !== layers.length) this.#makeCards();
    layers.forEach((layer, index) => this.#fillCard(this.cards.children[index], layer, index));
    const current = this.#current();
    $("transform").hidden = !current;
    for (const { name, input, value, text } of current ? this.inputs : []) {
      input.value = current[name];
      value.textContent = text(current[name]);
      input.setAttribute("aria-valuetext", text(current[name]));
      input.setAttribute("aria-label", `${input.parentElement.firstChild.textContent} picture ${selected + 1}`);
    }
    $("stage").dataset.tool = this.tool;
    this.handles.show();
  }

  #makeCards() {
    const { classes } = this.state.about;
    this.cards.replaceChildren(
      ...this.state.layers.map((_, index) => {
        const name = `Picture ${index + 1}`;
        const choose = make("select", {
          "aria-label": `What picture ${index + 1} shows`,
          onchange: () => this.#swap(index, Number(choose.value), 0),
        }, ...classes.map((label, value) => make("option", { value }, label)));
        return make(
          "div",
          { class: "card" },
          make("button", {
            class: "thumb", "aria-label": name, onclick: () => this.select(index), onkeydown: (event) => this.#key(event, index),
          }, make("canvas", { "aria-hidden": "true" })),
          choose,
          make("button", {
            class: "icon", "aria-label": `Another for picture ${index + 1}`, title: "Another sample of the same class",
            onclick: () => this.#swap(index, Number(choose.value), 1),
          }, "↻"),
        );
      }),
    );
  }

  #fillCard(card, layer, index) {
    const isSelected = index === this.state.selected;
    const thumb = card.querySelector(".thumb");
    const label = this.state.about.classes[this.state.samples.labels[layer.sample]];
    card.classList.toggle("selected", isSelected);
    thumb.setAttribute("aria-pressed", isSelected);
    thumb.setAttribute(
      "aria-label",
      `Picture ${index + 1}, ${label}. Arrow keys move, [ and ] turn, plus and minus scale, comma and full stop ${slantWord(this.state.about).toLowerCase()}.`,
    );
    paint(thumb.firstChild, this.state.samples.shape, this.sample(layer));
    card.querySelector("select").value = this.state.samples.labels[layer.sample];
  }

  #swap(index, label, ahead) {
    const { samples, layers } = this.state;
    const alike = samples.labels.flatMap((value, sample) => (value === label ? [sample] : []));
    const at = alike.indexOf(layers[index].sample);
    layers[index].sample = alike[(at + ahead + alike.length) % alike.length] ?? alike[0];
    this.state.change("picture");
    this.select(index);
  }

  #key(event, index) {
    const [name, amount] = KEYS[event.key] ?? [];
    if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.select(index);
    const layer = this.state.layers[index];
    this.move(layer, { [name]: layer[name] + amount });
  }

  #drawing() {
    const stage = $("stage");
    let last = null;
    const at = (event) => {
      const box = $("canvas").getBoundingClientRect();
      const [, h, w] = this.shape;
      return [((event.clientX - box.left) / box.width) * w, ((event.clientY - box.top) / box.height) * h];
    };
    const paintTo = (event) => {
      const erase = this.tool === "erase";
      for (const point of event.getCoalescedEvents?.().length ? event.getCoalescedEvents() : [event]) {
        const here = at(point);
        stroke(this.state.ink, this.shape, last ?? here, here, erase);
        last = here;
      }
      this.state.change("picture");
    };
    stage.addEventListener("pointerdown", (event) => {
      if (this.tool === "move" || event.button !== 0) return;
      if (this.tool === "erase") this.#flatten();
      stage.setPointerCapture(event.pointerId);
      paintTo(event);
    });
    stage.addEventListener("pointermove", (event) => last && paintTo(event));
    for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => (last = null));
  }

  // To erase parts of a layer it has to become ink.
  #flatten() {
    this.state.ink = this.image.slice();
    this.state.layers = [];
  }

  #files() {
    $("file").addEventListener("change", () => {
      if ($("file").files.length) this.#read($("file").files[0]);
      $("file").value = "";
    });
    document.addEventListener("paste", (event) => {
      const file = [...(event.clipboardData?.files ?? [])][0];
      if (file) this.#read(file);
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) this.#read(event.dataTransfer.files[0]);
    });
  }

  async #read(file) {
    try {
      const image = await this.state.engine.read(file);
      this.state.layers = [];
      this.state.ink = image;
      this.state.chosen = null;
      this.state.nudges.fill(0);
      this.state.change("picture");
      announce("The picture was read.");
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      notice(problem.message);
      this.refused = true;
    }
  }
}

export const firstLayers = (state) => {
  const { labels } = state.samples;
  const pick = (label, skip) => labels.flatMap((value, at) => (value === label ? [at] : []))[skip] ?? 0;
  if (!labels.length) return [];
  const last = state.about.classes.length - 1;
  if (state.about.objects === 1) return [{ ...NEUTRAL, sample: pick(Math.min(3, last), 2) }];
  return [{ ...NEUTRAL, sample: pick(Math.min(2, last - 1), 1), x: -4, y: -1 }, { ...NEUTRAL, sample: pick(Math.min(7, last), 4), x: 4, y: 1 }];
};
