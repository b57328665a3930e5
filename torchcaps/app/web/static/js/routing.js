// Panel 4: routing by agreement, round by round.

import { Channel } from "./channel.js";
import { $, make, notice } from "./dom.js";
import { drawFan } from "./fan.js";
import { Heat, drawHeat, isDensity, overGrid } from "./heat.js";
import { drawTree } from "./tree.js";

const ROUND_MS = 900;

export class Routing {
  constructor(state, see) {
    Object.assign(this, { state, see, answer: null, timer: null });
    this.grid = state.about.routing.grid;
    this.channel = new Channel((question) => state.engine.route(question), (answer, { image }) => this.#receive(answer, image), notice);
    this.maps = [
      new Heat($("coupling"), state.about, "coupling", () => this.answer && this.view),
      new Heat($("agreement"), state.about, "agreement", () => this.answer && this.view),
    ];
    this.frames = [1, 2, 3, 4, 5].map((round) => this.#frame(round));
    $("film").append(...this.frames.map((frame) => frame.label));
    $("rounds").addEventListener("click", () => (this.timer ? this.#stop() : this.#play()));
    see.addEventListener("look", () => this.#ask());
    state.addEventListener("choice", () => (this.answer?.parents.includes(see.chosen) ? this.show() : this.#ask()));
    if (isDensity(state.about)) $("agreement-says").textContent = "the parts whose votes lie close to the centre of this capsule’s votes (blue: further away than on average)";
    $("routing").hidden = false;
  }

  // What the drawings of this panel need to know.
  get view() {
    const { state, see, answer, image } = this;
    const [top, left] = answer.corner;
    const grid = { ...this.grid, top, left };
    const at = Math.max(0, answer.parents.indexOf(see.chosen));
    const round = Math.min(state.round, answer.iterations.length) - 1;
    return { about: state.about, grid, answer, image, at, round, chosen: answer.parents[at], see };
  }

  #ask() {
    if (!this.see.answer) return;
    const { lengths } = this.see.answer;
    const byLength = lengths.map((_, label) => label).sort((a, b) => lengths[b] - lengths[a]);
    const parents = [...new Set([...this.see.slots, ...byLength.slice(0, 2), this.see.chosen])];
    this.channel.ask({ image: this.see.image, parents });
  }

  #receive(answer, image) {
    const { types, rows, columns } = this.grid;
    Object.assign(this, { answer, image });
    answer.cells = answer.iterations.map((step) => ({
      coupling: step.couplings.map((values) => overGrid(values, answer.activations, types, rows * columns)),
      // Products add up over the types at a place; of log densities one wants the typical one.
      agreement: step.agreement.map((values) => overGrid(values, isDensity(this.state.about) ? answer.activations : null, types, rows * columns)),
    }));
    this.frames.forEach(({ label }, k) => (label.hidden = k >= answer.iterations.length));
    this.show();
  }

  show() {
    if (!this.answer) return;
    const { view } = this;
    const tone = this.see.toneOf(view.chosen);
    $("routing").dataset.tone = tone;
    $("routing-of").textContent = `to capsule ${view.about.classes[view.chosen]}`;
    this.#parents(view);
    this.frames.forEach(({ input, canvas }, k) => {
      input.checked = k === view.round;
      if (k < this.answer.iterations.length) drawHeat(canvas, { ...view, round: k }, "coupling", 2);
    });
    for (const map of this.maps) map.show();
    drawFan($("fan"), view);
    drawTree($("tree"), view);
  }

  #parents({ answer, about, chosen }) {
    const options = answer.parents.map((label) => {
      const input = make("input", {
        type: "radio", name: "parent", value: label,
        onchange: () => {
          this.state.chosen = label;
          this.state.nudges.fill(0);
          this.state.change("choice");
        },
      });
      input.checked = label === chosen;
      return make("label", { "data-tone": this.see.toneOf(label) }, input, make("span", {}, `to ${about.classes[label]}`));
    });
    const signature = answer.parents.join();
    const isSame = this.signature === signature;
    if (isSame) $("parents").querySelectorAll("input").forEach((input) => (input.checked = Number(input.value) === chosen));
    else $("parents").replaceChildren(...options);
    this.signature = signature;
  }

  #frame(round) {
    const input = make("input", {
      type: "radio", name: "round", value: round,
      onchange: () => {
        this.#stop();
        this.#go(round);
      },
    });
    const canvas = make("canvas", { "aria-hidden": "true" });
    const trained = this.state.about.routing.iterations === round ? make("small", {}, " as trained") : null;
    const label = make("label", {}, input, canvas, make("span", {}, `Round ${round}`, trained));
    return { label, input, canvas };
  }

  #go(round) {
    this.state.round = round;
    this.state.change("choice");
  }

  #play() {
    $("rounds").setAttribute("aria-pressed", "true");
    $("rounds").textContent = "Stop";
    this.#go(1);
    this.timer = setInterval(() => {
      if (this.state.round >= (this.answer?.iterations.length ?? 1)) this.#stop();
      else this.#go(this.state.round + 1);
    }, ROUND_MS);
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = null;
    $("rounds").setAttribute("aria-pressed", "false");
    $("rounds").textContent = "Play the rounds";
  }
}
