// The network in this browser: ONNX Runtime Web in a worker, on the graphs that “torchcaps publish” wrote.
// server.js says what an engine is.

import { Problem } from "../channel.js";
import { fromBase64 } from "../pixels.js";
import { startNetwork } from "./network.js";
import { readPicture } from "./pictures.js";

const PATIENCE_MS = 10000;

export async function connect() {
  await keepOffline();
  const { models } = await getJson("site.json");
  const wanted = new URLSearchParams(location.hash.slice(1)).get("model");
  const { id } = models.find((model) => model.id === wanted) ?? models[0];
  const [about, samples] = await Promise.all([getJson(`models/${id}/about.json`), getJson(`models/${id}/samples.json`)]);
  const folder = new URL(`models/${id}/`, document.baseURI).href;
  const { ask, problem } = await startNetwork({ folder, about }, new URLSearchParams(location.search).get("engine"));
  return {
    about,
    samples: { ...samples, pixels: fromBase64(samples.pixels) },
    models,
    model: id,
    problem,
    look: (image) => ask("look", image),
    decode: (question) => ask("decode", question),
    route: (question) => ask("route", question),
    read: (file) => readPicture(file, about.image, about.handwritten),
  };
}

async function getJson(path) {
  const answer = await fetch(path).catch(() => null);
  if (!answer?.ok) throw new Problem(`A part of this page cannot be loaded: ${path}.`);
  return answer.json();
}

// The service worker keeps every file that the page loads. The page waits for it, so that nothing is loaded twice.
async function keepOffline() {
  if (!navigator.serviceWorker) return;
  const isInControl = new Promise((resolve) => {
    if (navigator.serviceWorker.controller) resolve();
    navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true });
  });
  const registered = navigator.serviceWorker.register("sw.js").then(() => isInControl).catch(() => null);
  await Promise.race([registered, new Promise((resolve) => setTimeout(resolve, PATIENCE_MS))]);
}
