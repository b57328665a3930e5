// Runs the graphs of one model, one question after the other, away from the thread that draws the page.

// Only the build that is asked for is loaded: that for WebGPU is twice as large.
const RUNTIMES = { wasm: { by: "WebAssembly", build: "ort.wasm.min.mjs" }, webgpu: { by: "WebGPU", build: "ort.webgpu.min.mjs" } };
const PROBES = 3;

const network = {};
const tasks = { load, look, decode, route, probe };
let ort;
let queue = Promise.resolve();

addEventListener("message", ({ data: { number, task, question } }) => {
  queue = queue.then(async () => {
    try {
      postMessage({ number, answer: await tasks[task](question) });
    } catch (error) {
      console.warn(error);
      postMessage({ number, problem: task === "load" ? "The network cannot be loaded." : "The network could not answer." });
    }
  });
});

async function load({ folder, about, runtime }) {
  const { by, build } = RUNTIMES[runtime];
  ort = await import(`../../runtime/${build}`);
  ort.env.wasm.numThreads = 1;
  // Errors only: that some small steps run beside the graphics processor is no news.
  const options = { executionProviders: [runtime], logSeverityLevel: 3 };
  const open = (name) => ort.InferenceSession.create(`${folder}${name}.onnx`, options);
  Object.assign(network, { about, by, encoder: await open("encoder") });
  if (about.decoder) network.decoder = await open("decoder");
  if (about.routing) network.routing = await open("routing");
  await look(new Uint8Array(sizeOf(about.image)));
}

async function look(image) {
  const { about, by, encoder } = network;
  const pixels = Float32Array.from(image, (value) => value / 255);
  const seen = await encoder.run({ images: new ort.Tensor("float32", pixels, [1, ...about.image]) });
  Object.assign(network, { image, seen });
  const lengths = Array.from(seen.lengths.data);
  const longest = lengths.map((_, label) => label).sort((a, b) => lengths[b] - lengths[a]).slice(0, about.objects);
  const capsules = seen.capsules ? rows(seen.capsules.data, lengths.length) : null;
  const corner = cornerOf(seen);
  const layer = about.decoder && longest.map((label) => [label, capsules[label]]);
  return { lengths, longest, capsules, pictures: about.decoder ? await draw(layer, corner) : null, corner, by };
}

async function decode({ label, vectors, corner }) {
  return draw(vectors.map((vector) => [label, vector]), corner);
}

async function route({ image, parents }) {
  if (!isSame(image, network.image)) await look(image);
  const { votes, poses, activations } = network.seen;
  const steps = await network.routing.run({ votes, poses, activations });
  const [count, children, classes] = steps.couplings.dims;
  const to = (data, round) =>
    parents.map((parent) => Array.from({ length: children }, (_, child) => data[(round * children + child) * classes + parent]));
  const iterations = Array.from({ length: count }, (_, round) => ({
    lengths: Array.from(steps.lengths.data.subarray(round * classes, (round + 1) * classes)),
    spread: steps.spread.data[round],
    couplings: to(steps.couplings.data, round),
    agreement: to(steps.agreement.data, round),
  }));
  return { parents, activations: Array.from(activations.data), iterations, corner: cornerOf(network.seen) };
}

// Answers to a picture of waves, which is always the same, and the milliseconds that the quickest of them took.
async function probe() {
  const { about } = network;
  const [, , w] = about.image;
  const image = Uint8Array.from({ length: sizeOf(about.image) }, (_, at) => 127 * (1 + Math.sin((at % w) / 3) * Math.cos(at / w / 4)));
  const times = [];
  let values;
  for (let n = 0; n < PROBES; n++) {
    const began = performance.now();
    const { lengths, capsules } = await look(image);
    const routed = about.routing ? await route({ image, parents: [0] }) : { iterations: [] };
    times.push(performance.now() - began);
    values = [lengths, capsules ?? [], ...routed.iterations.flatMap((round) => [round.lengths, round.couplings])].flat(2);
  }
  return { values, milliseconds: Math.min(...times) };
}

// Pictures of capsules, [label, vector] each: the decoder sees the whole layer with all others set to zero.
async function draw(chosen, [top, left]) {
  const { about, decoder } = network;
  const width = about.classes.length * about.dimensions;
  const layers = new Float32Array(chosen.length * width);
  chosen.forEach(([label, vector], n) => layers.set(vector, n * width + label * about.dimensions));
  const { pictures } = await decoder.run({ capsules: new ort.Tensor("float32", layers, [chosen.length, width]) });
  const [, channels, height, across] = pictures.dims;
  const [, h, w] = about.image;
  return chosen.map((_, n) => {
    const picture = new Uint8Array(channels * h * w);
    for (let c = 0; c < channels; c++) {
      for (let y = 0; y < height; y++) {
        const from = ((n * channels + c) * height + y) * across;
        for (let x = 0; x < across; x++) picture[(c * h + top + y) * w + left + x] = Math.round(255 * pictures.data[from + x]);
      }
    }
    return picture;
  });
}

const sizeOf = (dims) => dims.reduce((product, size) => product * size, 1);

const cornerOf = (seen) => (seen.corner ? Array.from(seen.corner.data) : [0, 0]);

const rows = (data, count) => Array.from({ length: count }, (_, row) => Array.from(data.subarray((row * data.length) / count, ((row + 1) * data.length) / count)));

const isSame = (a, b) => a.length === b?.length && a.every((value, at) => value === b[at]);
