// The state in the address, a picture of it, and a recording.

import { $, announce, format } from "./dom.js";
import { encodeGif } from "./gif.js";

const TILE = 144;
const MARGIN = 16;
const NAMED_STEP = 16;
const MOST_FRAMES = 120;
const FRAME_MS = 60;
const ADDRESS_MS = 250;

export class Share {
  constructor(state, see, tweak) {
    Object.assign(this, { state, see, tweak, frames: null, timer: null });
    state.addEventListener("address", () => this.#remember());
    $("copy-link").addEventListener("click", () => this.#copy());
    $("save-picture").addEventListener("click", () => this.#save());
    $("record").addEventListener("click", () => (this.frames ? this.#finish() : this.#record()));
    see.addEventListener("look", () => this.#frame());
    tweak?.addEventListener("frame", () => this.#frame());
  }

  #remember() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#write(), ADDRESS_MS);
  }

  #write() {
    clearTimeout(this.timer);
    history.replaceState(null, "", `#${this.state.toAddress()}`);
  }

  async #copy() {
    this.#write();
    try {
      await navigator.clipboard.writeText(location.href);
      this.#flash($("copy-link"), "Copied");
      announce("The link is copied.");
    } catch {
      this.#flash($("copy-link"), "It is in the address bar");
    }
  }

  #flash(button, text) {
    button.dataset.text ??= button.textContent;
    button.textContent = text;
    setTimeout(() => (button.textContent = button.dataset.text), 1600);
  }

  // The input, the capsules over it, each alone and, while tweaking, the tweaked one; below them the lengths.
  card() {
    const { about } = this.state;
    const tiles = [["input", $("canvas")]];
    for (const figure of document.querySelectorAll("#tiles figure")) {
      tiles.push([figure.dataset.tile === "over" ? "taken apart" : figure.querySelector("figcaption").textContent.replace(/^What | \(.*/g, ""), figure.querySelector("canvas")]);
    }
    const isTweaked = this.tweak && (this.tweak.playing || this.state.nudges.some((value) => value));
    if (isTweaked) tiles.push(["tweaked", $("tweaked")]);
    const canvas = document.createElement("canvas");
    canvas.width = MARGIN + tiles.length * (TILE + MARGIN);
    canvas.height = TILE + 3.5 * MARGIN + 28;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#14171c";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingEnabled = false;
    context.textAlign = "center";
    tiles.forEach(([name, source], k) => {
      const x = MARGIN + k * (TILE + MARGIN);
      context.drawImage(source, x, MARGIN, TILE, TILE);
      context.fillStyle = "#c9ced6";
      context.font = "13px system-ui, sans-serif";
      context.fillText(name, x + TILE / 2, TILE + MARGIN + 18, TILE + MARGIN - 6);
    });
    this.#lengths(context, canvas, about);
    return canvas;
  }

  #lengths(context, canvas, about) {
    const step = (canvas.width - 2 * MARGIN) / about.classes.length;
    const base = canvas.height - MARGIN - 12;
    const { lengths } = this.see.answer;
    context.font = "11px system-ui, sans-serif";
    about.classes.forEach((label, index) => {
      const [red, green, blue] = this.see.slots.includes(index) ? this.see.colourOf(index) : [120, 128, 138];
      context.fillStyle = `rgb(${red},${green},${blue})`;
      const x = MARGIN + index * step;
      const gap = Math.min(2, step / 8);
      context.fillRect(x + gap, base - 22 * lengths[index], step - 2 * gap, 22 * lengths[index]);
      const isNamed = step >= NAMED_STEP || this.see.slots.includes(index);
      const room = step >= NAMED_STEP ? step : TILE;
      if (isNamed) context.fillText(step > 60 ? `${label} ${format(lengths[index])}` : label, clampTo(x + step / 2, room / 2, canvas.width), base + 14, room);
    });
  }

  #save() {
    this.card().toBlob((blob) => download(blob, "capsules.png"));
  }

  #record() {
    this.frames = [];
    $("record").textContent = "Stop and save";
    $("record").setAttribute("aria-pressed", "true");
    announce("Recording. Change the picture, then stop.");
    this.#frame();
  }

  #frame() {
    if (!this.frames || !this.see.answer) return;
    const canvas = this.card();
    const first = this.frames[0];
    const [width, height] = first ? [first.width, first.height] : [canvas.width, canvas.height];
    this.frames.push(canvas.getContext("2d").getImageData(0, 0, width, height));
    if (this.frames.length >= MOST_FRAMES) this.#finish();
  }

  #finish() {
    const { frames } = this;
    this.frames = null;
    $("record").textContent = "Record GIF";
    $("record").setAttribute("aria-pressed", "false");
    if (frames.length) download(encodeGif(frames, FRAME_MS), "capsules.gif");
  }
}

const clampTo = (x, half, width) => Math.min(width - half, Math.max(half, x));

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
