// The network on the server of “torchcaps serve”, behind its JSON interface (docs/api.md).
//
// An engine, here and in browser.js, is what `connect` returns. Pictures are Uint8Arrays in the order channel, row, column.
//   about, samples                      what the model is, and pictures to compose from
//   models, model                       the models to choose from, { id, title }, and the id of this one
//   problem                             what the person at the page should know, or null
//   look(image)                         { lengths, longest, capsules, pictures, corner }; in the browser also by: what ran the network
//   decode({ label, vectors, corner })  a picture for each vector
//   route({ image, parents })           { parents, activations, iterations, corner }
//   read(file)                          a picture file as an image

import { Problem, sentence } from "../channel.js";
import { fromBase64, toBase64 } from "../pixels.js";

export async function connect() {
  const [about, samples] = await Promise.all([request("model"), request("samples")]);
  return {
    about,
    samples: { ...samples, pixels: fromBase64(samples.pixels) },
    models: [],
    model: null,
    problem: null,
    look: async (image) => withPictures(await post("look", { image: toBase64(image) })),
    decode: async (question) => withPictures(await post("decode", question)).pictures,
    route: ({ image, parents }) => post("routing", { image: toBase64(image), parents }),
    read: async (file) => fromBase64((await send("picture", file.type || "application/octet-stream", file)).image),
  };
}

const withPictures = (answer) => ({ ...answer, pictures: answer.pictures?.map(fromBase64) ?? null });

const post = (path, body) => send(path, "application/json", JSON.stringify(body));

const send = (path, type, body) => request(path, { method: "POST", headers: { "content-type": type }, body });

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(`api/${path}`, options);
  } catch {
    throw new Problem("The server does not answer. Is “torchcaps serve” still running?");
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(sentence(body.error ?? `The server answered ${answer.status}.`));
  return body;
}
