// Everything that a shared address brings back: the layers, the ink, and what is being looked at.

import { NEUTRAL, RANGES, clamp } from "./layers.js";

const LAYER_FIELDS = ["x", "y", "turn", "size", "slant"];

export class State extends EventTarget {
  constructor(engine) {
    super();
    const { about, samples } = engine;
    Object.assign(this, { engine, about, samples });
    this.length = about.image.reduce((product, size) => product * size, 1);
    this.layers = [];
    this.ink = new Uint8Array(this.length);
    this.selected = 0;
    this.chosen = null;
    this.round = about.routing ? Math.min(about.routing.iterations, 5) : 1;
    this.number = 0;
    this.nudges = new Array(about.dimensions ?? 0).fill(0);
  }

  // `what` is "picture" when the network has to look again, "choice" when only the view of it changes.
  change(what) {
    this.dispatchEvent(new Event(what));
    this.dispatchEvent(new Event("address"));
  }

  get hasInk() {
    return this.ink.some((value) => value > 0);
  }

  toAddress() {
    const parts = new URLSearchParams();
    if (this.engine.models.length > 1) parts.set("model", this.engine.model);
    if (this.layers.length) parts.set("layers", this.layers.map(layerText).join("_"));
    if (this.hasInk) parts.set("ink", packInk(this.ink));
    if (this.chosen !== null) parts.set("capsule", this.chosen);
    if (this.about.routing) parts.set("round", this.round);
    if (this.number) parts.set("number", this.number + 1);
    if (this.nudges.some((value) => value)) parts.set("nudges", this.nudges.map((value) => +value.toFixed(2)).join("_"));
    return parts.toString();
  }

  // Returns whether the address held a picture. Anything that does not fit this model is left out.
  fromAddress(text) {
    const parts = new URLSearchParams(text);
    const layers = (parts.get("layers") ?? "").split("_").map((part) => this.#layer(part)).filter(Boolean);
    const ink = unpackInk(parts.get("ink"), this.length);
    this.layers = layers.slice(0, 2);
    if (ink) this.ink = ink;
    const capsule = whole(parts.get("capsule"), this.about.classes.length);
    if (capsule !== null) this.chosen = capsule;
    const round = whole(parts.get("round"), 6);
    if (round && this.about.routing) this.round = round;
    this.number = Math.max(0, (whole(parts.get("number"), this.nudges.length + 1) ?? 1) - 1);
    const nudges = (parts.get("nudges") ?? "").split("_").map(Number);
    if (nudges.length === this.nudges.length && nudges.every(Number.isFinite)) this.nudges = nudges.map((value) => clamp(value, [-1, 1]));
    return layers.length > 0 || ink !== null;
  }

  #layer(text) {
    const [sample, ...values] = text.split("~").map(Number);
    if (!Number.isInteger(sample) || !(sample in this.samples.labels) || values.length !== 5) return null;
    if (!values.every(Number.isFinite)) return null;
    return { sample, ...Object.fromEntries(LAYER_FIELDS.map((name, k) => [name, clamp(values[k], RANGES[name])])) };
  }

  shuffle() {
    const { labels } = this.samples;
    if (!labels.length) return;
    this.ink = new Uint8Array(this.length);
    this.layers = [];
    for (let tries = 0; this.layers.length < this.about.objects && tries < 1000; tries++) {
      const sample = Math.floor(Math.random() * labels.length);
      if (this.layers.some((layer) => labels[layer.sample] === labels[sample])) continue;
      const [x, y] = this.about.objects > 1 ? [shift(), shift()] : [0, 0];
      this.layers.push({ ...NEUTRAL, sample, x, y });
    }
    this.selected = 0;
    this.chosen = null;
    this.nudges.fill(0);
    this.change("picture");
  }

  clear() {
    this.layers = [];
    this.ink = new Uint8Array(this.length);
    this.chosen = null;
    this.nudges.fill(0);
    this.change("picture");
  }
}

const shift = () => Math.floor(Math.random() * 9) - 4;

const layerText = (layer) => [layer.sample, ...LAYER_FIELDS.map((name) => +layer[name].toFixed(2))].join("~");

function whole(text, below) {
  const value = Number(text);
  return text !== null && text !== "" && Number.isInteger(value) && value >= 0 && value < below ? value : null;
}

// Sixteen levels, two to a byte, as base64 that an address can hold.
function packInk(ink) {
  let text = "";
  for (let at = 0; at < ink.length; at += 2) {
    text += String.fromCharCode(Math.round(ink[at] / 17) * 16 + Math.round((ink[at + 1] ?? 0) / 17));
  }
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function unpackInk(text, length) {
  if (!text) return null;
  let bytes;
  try {
    bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    return null;
  }
  if (bytes.length !== Math.ceil(length / 2)) return null;
  return Uint8Array.from({ length }, (_, at) => {
    const byte = bytes.charCodeAt(at >> 1);
    return 17 * (at % 2 ? byte & 15 : byte >> 4);
  });
}
