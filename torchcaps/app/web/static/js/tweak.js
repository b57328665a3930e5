// Panel 3: change the numbers of one capsule's arrow and let the decoder redraw it.

import { Channel } from "./channel.js";
import { $, format, make, notice } from "./dom.js";
import { BLUE, paint, paintTinted } from "./pixels.js";

const RANGE = 0.4;
const STRIP = 9;
const FRAMES = 33;
const FRAME_MS = 45;

const steps = (count) => Array.from({ length: count }, (_, k) => RANGE * ((2 * k) / (count - 1) - 1));

export class Tweak extends EventTarget {
  constructor(state, see) {
    super();
    Object.assign(this, { state, see, playing: null });
    this.decode = (question) => state.engine.decode(question);
    this.single = new Channel(this.decode, ([picture]) => this.#paintBig(picture), notice);
    this.strip = new Channel(this.decode, (pictures) => this.#paintStrip(pictures), notice);
    this.sliders = state.nudges.map((_, number) => this.#slider(number));
    this.cells = steps(STRIP).map((nudge) => this.#cell(nudge));
    $("strip").append(...this.cells.map((cell) => cell.button));
    $("reset").addEventListener("click", () => this.#reset());
    $("play").addEventListener("click", () => (this.playing ? this.#stop() : see.answer && this.#play()));
    see.addEventListener("look", () => this.show());
    state.addEventListener("choice", () => this.show());
    $("tweak").hidden = false;
  }

  get pose() {
    return this.see.answer.capsules[this.see.chosen];
  }

  show() {
    if (!this.see.answer) return;
    if (this.playing && !this.#isPlayed(this.playing)) return this.#stop();
    const { nudges, number, about } = this.state;
    const label = about.classes[this.see.chosen];
    const vector = this.pose.map((value, k) => value + nudges[k]);
    $("tweak-of").textContent = `capsule ${label}`;
    $("tweak").dataset.tone = this.see.toneOf(this.see.chosen);
    $("tweaked-caption").textContent = nudges.some((value) => value)
      ? `Capsule ${label}, tweaked: length ${format(Math.hypot(...vector))}`
      : `Capsule ${label}, as it is: length ${format(Math.hypot(...vector))}`;
    this.sliders.forEach(({ input, value, row }, k) => {
      input.value = nudges[k];
      value.textContent = format(vector[k]);
      input.setAttribute("aria-valuetext", format(vector[k]));
      row.classList.toggle("current", k === number);
    });
    if (!this.playing) $("play").textContent = `What does number ${number + 1} do?`;
    this.single.ask(this.#question([vector]));
    this.strip.ask(this.#question(this.#along(steps(STRIP))));
    this.cells.forEach(({ button, nudge, caption }) => {
      caption.textContent = format(this.pose[number] + nudge);
      button.setAttribute("aria-label", `Set number ${number + 1} to ${caption.textContent}`);
      button.classList.toggle("current", Math.abs(nudges[number] - nudge) < RANGE / STRIP);
    });
  }

  // Whether what is played is still what panel 2 shows.
  #isPlayed({ answer, chosen }) {
    return answer === this.see.answer && chosen === this.see.chosen;
  }

  #question(vectors) {
    return { label: this.see.chosen, vectors, corner: this.see.answer.corner };
  }

  #along(nudges) {
    const { number } = this.state;
    return nudges.map((nudge) => this.pose.map((value, k) => value + (k === number ? nudge : this.state.nudges[k])));
  }

  #set(number, nudge) {
    this.#stop();
    this.state.number = number;
    this.state.nudges[number] = nudge;
    this.state.chosen = this.see.chosen;
    this.state.change("choice");
  }

  #slider(number) {
    const value = make("output");
    const input = make("input", {
      type: "range", min: -RANGE, max: RANGE, step: 0.01, value: 0, "aria-label": `Number ${number + 1}`,
      oninput: () => this.#set(number, Number(input.value)),
      onfocus: () => this.#look(number),
      ondblclick: () => this.#set(number, 0),
    });
    const row = make("label", {}, make("span", {}, String(number + 1)), input, value);
    $("sliders").append(row);
    return { input, value, row };
  }

  #look(number) {
    if (this.state.number === number) return;
    this.#stop();
    this.state.number = number;
    this.state.change("choice");
  }

  #cell(nudge) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const caption = make("span");
    const button = make("button", { onclick: () => this.#set(this.state.number, +nudge.toFixed(2)) }, canvas, caption);
    return { button, canvas, caption, nudge };
  }

  #reset() {
    this.#stop();
    this.state.nudges.fill(0);
    this.state.change("choice");
  }

  #paint(canvas, bytes) {
    const { image } = this.state.about;
    if (image[0] === 3) paint(canvas, image, bytes);
    else paintTinted(canvas, image, bytes, this.see.colourOf(this.see.chosen) ?? BLUE);
  }

  #paintBig(picture) {
    if (this.playing) return;
    this.picture = picture;
    this.#paint($("tweaked"), this.picture);
  }

  #paintStrip(pictures) {
    pictures.forEach((picture, k) => this.#paint(this.cells[k].canvas, picture));
  }

  // The whole range is decoded in one request and then shown back and forth, three times.
  async #play() {
    const { number } = this.state;
    const range = steps(FRAMES);
    this.playing = { answer: this.see.answer, chosen: this.see.chosen };
    const mine = this.playing;
    $("play").setAttribute("aria-pressed", "true");
    $("play").textContent = "Stop";
    const pictures = await this.decode(this.#question(this.#along(range))).catch(() => []);
    const middle = (FRAMES - 1) / 2;
    for (let tick = 0; pictures.length && this.playing === mine && tick < 3 * 2 * (FRAMES - 1); tick++) {
      const phase = (tick + middle) % (2 * (FRAMES - 1));
      const at = phase < FRAMES ? phase : 2 * (FRAMES - 1) - phase;
      this.picture = pictures[at];
      this.#paint($("tweaked"), this.picture);
      this.sliders[number].input.value = range[at];
      this.sliders[number].value.textContent = format(this.pose[number] + range[at]);
      this.cells.forEach(({ button, nudge }) => button.classList.toggle("current", Math.abs(range[at] - nudge) < RANGE / STRIP));
      this.dispatchEvent(new Event("frame"));
      await new Promise((resolve) => setTimeout(resolve, FRAME_MS));
    }
    if (this.playing === mine) this.#stop();
  }

  #stop() {
    if (!this.playing) return;
    this.playing = null;
    $("play").setAttribute("aria-pressed", "false");
    this.show();
  }
}
