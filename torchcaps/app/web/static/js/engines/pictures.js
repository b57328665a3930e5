// A picture file as the pixels that a model takes, prepared as torchcaps/data/readers/pictures.py prepares it.

import { Problem } from "../channel.js";

const SMALLEST = 4;
const MOST_PIXELS = 16e6;
const [DIGIT_BOX, DIGIT_CANVAS] = [20, 28];
const BILINEAR = { support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) };
const LANCZOS = { support: 3, weight: (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0) };

export async function readPicture(file, image, handwritten) {
  const [channels, height, width] = image;
  const { planes, size } = toPlanes(await decoded(file), channels);
  if (handwritten && channels === 1) {
    const prepared = asDigit(planes[0], size, [height, width]);
    return resized(prepared.pixels, prepared.size, [height, width], BILINEAR);
  }
  const pixels = new Uint8Array(channels * height * width);
  planes.forEach((plane, c) => pixels.set(resized(plane, size, [height, width], BILINEAR), c * height * width));
  return pixels;
}

async function decoded(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  } catch {
    throw new Problem("The picture is not an image that can be read; PNG and JPEG can.");
  }
  const { width, height } = bitmap;
  if (Math.min(width, height) < SMALLEST) throw new Problem(`The picture has ${width}x${height} pixels; at least ${SMALLEST}x${SMALLEST} are needed.`);
  if (width * height > MOST_PIXELS) throw new Problem(`The picture has ${width}x${height} pixels; at most 16 million are read.`);
  return bitmap;
}

// On white paper, as grey or as red, green and blue.
function toPlanes(bitmap, channels) {
  const { width, height } = bitmap;
  const context = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height);
  const plane = (value) => Uint8Array.from({ length: width * height }, (_, at) => value(4 * at));
  const grey = (at) => (299 * data[at] + 587 * data[at + 1] + 114 * data[at + 2] + 500) / 1000;
  const planes = channels === 3 ? [0, 1, 2].map((c) => plane((at) => data[at + c])) : [plane(grey)];
  return { planes, size: [height, width] };
}

// As MNIST was made: light ink on dark, in a box of 20 pixels, with its centre of mass in the middle.
function asDigit(pixels, [h, w], [height, width]) {
  let prepared = { pixels: lightOnDark(pixels, h, w), size: [h, w] };
  const isReady = (h === height && w === width) || (h === DIGIT_CANVAS && w === DIGIT_CANVAS);
  if (!isReady) prepared = centred(prepared.pixels, h, w);
  const [ph, pw] = prepared.size;
  if (ph > height || pw > width) return prepared;
  const top = Math.floor((height - ph) / 2);
  const left = Math.floor((width - pw) / 2);
  return { pixels: pasted(prepared.pixels, [ph, pw], [height, width], top, left), size: [height, width] };
}

function lightOnDark(pixels, h, w) {
  const rim = [];
  for (let x = 0; x < w; x++) rim.push(pixels[x], pixels[(h - 1) * w + x]);
  for (let y = 0; y < h; y++) rim.push(pixels[y * w], pixels[y * w + w - 1]);
  rim.sort((a, b) => a - b);
  return rim[rim.length >> 1] > 127 ? pixels.map((value) => 255 - value) : pixels;
}

function centred(pixels, h, w) {
  const [low, high] = pixels.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [255, 0]);
  const clear = high > low ? pixels.map((value) => ((value - low) * 255) / (high - low)) : pixels;
  const box = boxAround(clear, h, w, 64);
  if (!box) return { pixels: clear, size: [h, w] };
  const size = [box.bottom - box.top + 1, box.right - box.left + 1];
  const ink = new Uint8Array(size[0] * size[1]);
  for (let y = 0; y < size[0]; y++) ink.set(clear.subarray((box.top + y) * w + box.left, (box.top + y) * w + box.right + 1), y * size[1]);
  const scale = DIGIT_BOX / Math.max(...size);
  const small = size.map((length) => Math.max(1, Math.round(length * scale)));
  const digit = resized(ink, size, small, LANCZOS);
  let [total, sumX, sumY] = [0, 0, 0];
  digit.forEach((value, at) => {
    total += value;
    sumX += value * (at % small[1]);
    sumY += value * Math.floor(at / small[1]);
  });
  const middle = (DIGIT_CANVAS - 1) / 2;
  const [top, left] = [sumY, sumX].map((sum) => Math.round(middle - sum / (total || 1)));
  const canvas = [DIGIT_CANVAS, DIGIT_CANVAS];
  return { pixels: pasted(digit, small, canvas, top, left), size: canvas };
}

function boxAround(pixels, h, w, above) {
  let box = null;
  for (let y = 0; y < h; y++) {
    for (let x = 0; x < w; x++) {
      if (pixels[y * w + x] <= above) continue;
      box ??= { top: y, bottom: y, left: x, right: x };
      box.bottom = y;
      box.left = Math.min(box.left, x);
      box.right = Math.max(box.right, x);
    }
  }
  return box;
}

function pasted(pixels, [h, w], [height, width], top, left) {
  const canvas = new Uint8Array(height * width);
  for (let y = Math.max(0, -top); y < Math.min(h, height - top); y++) {
    for (let x = Math.max(0, -left); x < Math.min(w, width - left); x++) canvas[(top + y) * width + left + x] = pixels[y * w + x];
  }
  return canvas;
}

// Weighted means over what one new pixel covers, along the rows and then along the columns.
function resized(pixels, [h, w], [height, width], filter) {
  if (h === height && w === width) return pixels;
  const across = alongRows(pixels, h, w, width, filter);
  return transposed(alongRows(transposed(across, h, width), width, h, height, filter), width, height);
}

function alongRows(pixels, h, w, width, { support, weight }) {
  const scale = w / width;
  const reach = Math.max(1, scale);
  const out = new Uint8ClampedArray(h * width);
  for (let x = 0; x < width; x++) {
    const centre = (x + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - support * reach + 0.5));
    const last = Math.min(w, Math.floor(centre + support * reach + 0.5));
    const weights = Array.from({ length: last - first }, (_, k) => weight((first + k - centre + 0.5) / reach));
    const total = weights.reduce((sum, value) => sum + value, 0);
    for (let y = 0; y < h; y++) {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * pixels[y * w + first + k];
      out[y * width + x] = sum / total;
    }
  }
  return out;
}

const transposed = (pixels, h, w) => Uint8Array.from({ length: h * w }, (_, at) => pixels[(at % h) * w + Math.floor(at / h)]);

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
