// Bytes to canvases. A picture is a Uint8Array in the order channel, row, column.

export const RED = [255, 72, 76];
export const GREEN = [38, 222, 118];
export const BLUE = [98, 150, 255];

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

export function paint(canvas, [c, h, w], picture, light = 1) {
  draw(canvas, h, w, (at, size) => colourAt(picture, at, size, c).map((value) => value * light));
}

// The first channel of a picture that is not in colour.
function colourAt(picture, at, size, channels) {
  return channels === 3 ? [picture[at], picture[at + size], picture[at + 2 * size]] : [picture[at], picture[at], picture[at]];
}

// The input in grey, what each capsule redraws in its colour on top of it; where two meet, the colours add up.
// In pictures that have colours of their own, both are mixed in equal parts.
export function paintOver(canvas, [c, h, w], input, pictures, colours) {
  draw(canvas, h, w, (at, size) => {
    if (c === 3) return mean([input, ...pictures].map((picture) => colourAt(picture, at, size, c)));
    const grey = brightness(input, at, size, c) * 0.3;
    const pixel = [grey, grey, grey];
    pictures.forEach((picture, k) => {
      const ink = brightness(picture, at, size, c) / 255;
      for (let channel = 0; channel < 3; channel++) pixel[channel] += ink * (colours[k][channel] - grey * 0.6);
    });
    return pixel;
  });
}

export function paintTinted(canvas, [c, h, w], picture, colour) {
  draw(canvas, h, w, (at, size) => {
    const ink = brightness(picture, at, size, c) / 255;
    return colour.map((channel) => ink * channel + 70 * ink ** 3);
  });
}

const mean = (colours) => [0, 1, 2].map((channel) => colours.reduce((sum, colour) => sum + colour[channel], 0) / colours.length);

export function brightness(picture, at, size, channels) {
  return channels === 3 ? (picture[at] + picture[at + size] + picture[at + 2 * size]) / 3 : picture[at];
}

function draw(canvas, h, w, colourAt) {
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  const image = context.createImageData(w, h);
  for (let at = 0; at < h * w; at++) {
    const [red, green, blue] = colourAt(at, h * w);
    image.data.set([red, green, blue, 255], at * 4);
  }
  context.putImageData(image, 0, 0);
}
