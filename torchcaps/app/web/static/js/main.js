// The page: fetch the model's description, make the panels that this model can fill, and start with a picture.

import { Problem, get } from "./api.js";
import { Compose, firstLayers } from "./compose.js";
import { $, notice } from "./dom.js";
import { Routing } from "./routing.js";
import { See } from "./see.js";
import { Share } from "./share.js";
import { State } from "./state.js";
import { followTheme } from "./theme.js";
import { Tweak } from "./tweak.js";

async function start() {
  followTheme($("theme"));
  const [about, samples] = await Promise.all([get("model"), get("samples")]);
  const state = new State(about, samples);
  const compose = new Compose(state);
  const see = new See(state, compose);
  const tweak = about.decoder ? new Tweak(state, see) : null;
  if (about.routing) new Routing(state, see);
  else if (about.hidden) explainMissingRouting(about.hidden);
  new Share(state, see, tweak);
  introduce(about);
  if (!state.fromAddress(location.hash.slice(1))) state.layers = firstLayers(state);
  state.dispatchEvent(new Event("picture"));
  // Another state was pasted into the address; the skip link's own fragment is no state.
  window.addEventListener("hashchange", (event) => new URL(event.newURL).hash.includes("=") && location.reload());
  document.documentElement.dataset.ready = "true";
}

function introduce(about) {
  const [, h, w] = about.image;
  const parts = [about.name, `${about.parameters.toLocaleString("en")} parameters`, `${h}×${w} pixels`, `trained on ${about.data}`];
  if (about.accuracy) parts.push(`${(about.accuracy * 100).toFixed(1)}\u00a0%\u00a0right`);
  $("model-line").textContent = parts.join(" · ");
  const isDigits = about.classes.every((label) => /^\d$/.test(label));
  if (about.handwritten) $("tweak-what").textContent = "how the stroke, the slant or the width of the drawing changes";
  if (!isDigits) for (const noun of document.querySelectorAll(".noun")) noun.textContent = "class";
  if (!about.dimensions) $("lead").hidden = true;
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
