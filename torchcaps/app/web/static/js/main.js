// The page: connect to an engine, make the panels that its model can fill, and start with a picture.

import { Problem } from "./channel.js";
import { Compose, firstLayers } from "./compose.js";
import { $, make, notice } from "./dom.js";
import { Routing } from "./routing.js";
import { See } from "./see.js";
import { Share } from "./share.js";
import { State } from "./state.js";
import { followTheme } from "./theme.js";
import { Tweak } from "./tweak.js";

const VECTORS = "Sabour, Frosst and Hinton, Dynamic routing between capsules, 2017";
const MATRICES = "Hinton, Sabour and Frosst, Matrix capsules with EM routing, 2018";

async function start() {
  followTheme($("theme"));
  // A published page says that its network runs in the browser.
  const { connect } = await import(`./engines/${document.documentElement.dataset.engine ?? "server"}.js`);
  const engine = await connect();
  const { about } = engine;
  const state = new State(engine);
  const compose = new Compose(state);
  const see = new See(state, compose);
  const tweak = about.decoder ? new Tweak(state, see) : null;
  if (about.routing) new Routing(state, see);
  else if (about.hidden) explainMissingRouting(about.hidden);
  new Share(state, see, tweak);
  introduce(engine);
  offerModels(engine);
  if (engine.problem) notice(engine.problem);
  if (!state.fromAddress(location.hash.slice(1))) state.layers = firstLayers(state);
  state.dispatchEvent(new Event("picture"));
  // Another state was pasted into the address; the skip link's own fragment is no state.
  window.addEventListener("hashchange", (event) => new URL(event.newURL).hash.includes("=") && location.reload());
  document.documentElement.dataset.ready = "true";
}

function introduce({ about, models, model }) {
  const [, h, w] = about.image;
  const parts = [`${about.parameters.toLocaleString("en")} parameters`, `${h}×${w} pixels`, `trained on ${about.data}`];
  const isNamed = models.length > 1 && models.find(({ id }) => id === model).title.includes(about.name);
  if (!isNamed) parts.unshift(about.name);
  if (about.accuracy) parts.push(`${(about.accuracy * 100).toFixed(1)}\u00a0%\u00a0right`);
  $("model-line").textContent = parts.join(" · ");
  const isDigits = about.classes.every((label) => /^\d$/.test(label));
  if (about.handwritten) $("tweak-what").textContent = "how the stroke, the slant or the width of the drawing changes";
  if (!isDigits) for (const noun of document.querySelectorAll(".noun")) noun.textContent = "class";
  $("lead").hidden = !about.dimensions || about.matrices;
  $("lead-matrices").hidden = !about.matrices;
  $("paper").textContent = about.matrices ? MATRICES : VECTORS;
  $("digits-licence").hidden = !about.handwritten;
}

function offerModels({ models, model }) {
  if (models.length < 2) return;
  const choose = $("model");
  choose.append(...models.map(({ id, title }) => make("option", { value: id, selected: id === model }, title)));
  choose.addEventListener("change", () => (location.hash = `model=${choose.value}`));
  choose.parentElement.hidden = false;
}

function explainMissingRouting(hidden) {
  const layers = hidden === 1 ? "a hidden layer of capsules" : `${hidden} hidden layers of capsules`;
  $("routing-says").textContent =
    `This network routes through ${layers}, whose capsules have no place in the picture, so their routing cannot be drawn over it.`;
  for (const part of document.querySelectorAll("#routing > :not(h2, #routing-says)")) part.hidden = true;
  $("routing").hidden = false;
}

start().catch((problem) => {
  notice(problem instanceof Problem ? problem.message : "The page could not start; the browser’s console says why.");
  if (!(problem instanceof Problem)) throw problem;
});
