// The workers that run the network. WebAssembly answers from the beginning. If the browser has a graphics processor, a
// second worker tries WebGPU meanwhile, and takes over if its answers are the same and come sooner: networks this small
// often are not worth the way to the graphics processor and back.

import { Problem } from "../channel.js";

const MOST_APART = 1e-3;

// `wanted` is "wasm" or "webgpu" if the address asks for one. `problem` says why it could not be had.
export async function startNetwork(model, wanted) {
  const wasm = await startWorker("wasm", model);
  let gpu = null;
  let problem = null;
  const tried = wanted === "wasm" ? null : startGpu(model, wasm, wanted === "webgpu").then((worker) => (gpu = worker));
  tried?.catch((error) => console.info(`WebGPU is not used: ${error.message}`));
  if (wanted === "webgpu") await tried.catch((error) => (problem = `The address asks for WebGPU, but ${error.message} WebAssembly answers.`));
  if (wanted && !["wasm", "webgpu"].includes(wanted)) problem = `There is no engine “${wanted}”: the address may ask for engine=wasm or engine=webgpu.`;

  async function ask(task, question) {
    if (!gpu) return wasm.ask(task, question);
    const asked = gpu;
    try {
      return await asked.ask(task, question);
    } catch {
      // The driver gave up, as some do when a laptop wakes.
      asked.stop();
      gpu = null;
      return wasm.ask(task, question);
    }
  }
  return { ask, problem };
}

async function startGpu(model, wasm, isForced) {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  if (!adapter) throw new Problem("this browser has none.");
  if (adapter.info?.isFallbackAdapter && !isForced) throw new Problem("it is only imitated by the processor.");
  // Browsers compile WebAssembly better once it has been used: its first answers would be judged too slow.
  await wasm.ask("probe");
  const gpu = await startWorker("webgpu", model).catch(() => {
    throw new Problem("it does not run this network.");
  });
  try {
    const [usual, found] = [await wasm.ask("probe"), await gpu.ask("probe")];
    const isSame = usual.values.every((value, at) => Math.abs(value - found.values[at]) <= MOST_APART);
    if (!isSame) throw new Problem("its answers are wrong.");
    const times = [found, usual].map(({ milliseconds }) => milliseconds.toFixed(1));
    if (found.milliseconds >= usual.milliseconds && !isForced) throw new Problem(`it takes ${times[0]} ms where WebAssembly takes ${times[1]}.`);
    return gpu;
  } catch (error) {
    gpu.stop();
    throw error;
  }
}

// Questions to a worker, answered in the order in which they are asked.
async function startWorker(runtime, model) {
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const waiting = new Map();
  let count = 0;
  worker.addEventListener("message", ({ data: { number, answer, problem } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (problem) reject(new Problem(problem));
    else resolve(answer);
  });
  const giveUp = () => {
    for (const { reject } of waiting.values()) reject(new Problem("This browser cannot run the network: it needs WebAssembly and module workers."));
    waiting.clear();
  };
  worker.addEventListener("error", giveUp);
  const stop = () => {
    worker.terminate();
    giveUp();
  };
  const ask = (task, question) =>
    new Promise((resolve, reject) => {
      waiting.set(++count, { resolve, reject });
      worker.postMessage({ number: count, task, question });
    });
  await ask("load", { ...model, runtime }).catch((error) => {
    stop();
    throw error;
  });
  return { ask, stop };
}
