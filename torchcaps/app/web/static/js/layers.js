// A layer is a sample picture under an affine map: moved, turned, scaled and sheared about its centre.

export const NEUTRAL = { x: 0, y: 0, turn: 0, size: 1, slant: 0 };
export const RANGES = {
  x: [-24, 24],
  y: [-24, 24],
  turn: [-180, 180],
  size: [0.4, 1.8],
  slant: [-1, 1],
};

// What a slant is called: letters slant, photographs do not.
export const slantWord = (about) => (about.handwritten ? "Slant" : "Skew");

export const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));

// Columns of the matrix that takes a sample's coordinates, seen from its centre, to the canvas.
export function matrix({ turn, size, slant }) {
  const angle = (turn * Math.PI) / 180;
  const cos = Math.cos(angle) * size;
  const sin = Math.sin(angle) * size;
  return [cos, sin, -sin - slant * cos, cos - slant * sin];
}

export function toCanvas(layer, [h, w], u, v) {
  const [a, b, c, d] = matrix(layer);
  return [w / 2 + layer.x + a * u + c * v, h / 2 + layer.y + b * u + d * v];
}

// Bilinear sampling; an unturned layer at whole pixels is copied exactly.
export function warp(sample, [sc, sh, sw], layer, [c, h, w]) {
  const [ma, mb, mc, md] = matrix(layer);
  const determinant = ma * md - mb * mc;
  const picture = new Float32Array(c * h * w);
  for (let y = 0; y < h; y++) {
    for (let x = 0; x < w; x++) {
      const dx = x + 0.5 - w / 2 - layer.x;
      const dy = y + 0.5 - h / 2 - layer.y;
      const u = (md * dx - mc * dy) / determinant + sw / 2 - 0.5;
      const v = (ma * dy - mb * dx) / determinant + sh / 2 - 0.5;
      if (u <= -1 || v <= -1 || u >= sw || v >= sh) continue;
      for (let channel = 0; channel < c; channel++) {
        const plane = Math.min(channel, sc - 1) * sh * sw;
        picture[(channel * h + y) * w + x] = bilinear(sample, plane, sh, sw, u, v);
      }
    }
  }
  return picture;
}

function bilinear(sample, plane, h, w, u, v) {
  const u0 = Math.floor(u);
  const v0 = Math.floor(v);
  const fu = u - u0;
  const fv = v - v0;
  const at = (y, x) => (x < 0 || y < 0 || x >= w || y >= h ? 0 : sample[plane + y * w + x]);
  const top = at(v0, u0) * (1 - fu) + at(v0, u0 + 1) * fu;
  const bottom = at(v0 + 1, u0) * (1 - fu) + at(v0 + 1, u0 + 1) * fu;
  return top * (1 - fv) + bottom * fv;
}

// As the network's training data were made: the sum, clipped, or the larger of the two.
export function combine(pictures, length, overlay) {
  const sum = new Float32Array(length);
  for (const picture of pictures) {
    for (let at = 0; at < length; at++) sum[at] = overlay === "maximum" ? Math.max(sum[at], picture[at]) : sum[at] + picture[at];
  }
  return Uint8Array.from(sum, (value) => Math.min(255, Math.round(value)));
}

// Half the width and height of the ink, with a pixel of air: the frame that the handles sit on.
export function inkBox(sample, [c, h, w]) {
  let [halfWidth, halfHeight] = [3, 3];
  for (let at = 0; at < sample.length; at++) {
    if (sample[at] < 64) continue;
    const x = at % w;
    const y = Math.floor(at / w) % h;
    halfWidth = Math.max(halfWidth, Math.abs(x + 0.5 - w / 2) + 1.5);
    halfHeight = Math.max(halfHeight, Math.abs(y + 0.5 - h / 2) + 1.5);
  }
  return [Math.min(halfWidth, w / 2), Math.min(halfHeight, h / 2)];
}

// A soft round brush about as wide as the strokes of handwritten digits, along a line; erasing is the same, downwards.
export function stroke(ink, [c, h, w], from, to, erase) {
  const radius = (erase ? 3 : 1.9) * Math.max(1, w / 36);
  const [x0, y0] = from;
  const [dx, dy] = [to[0] - x0, to[1] - y0];
  const squared = dx * dx + dy * dy || 1;
  for (let y = 0; y < h; y++) {
    for (let x = 0; x < w; x++) {
      const [px, py] = [x + 0.5 - x0, y + 0.5 - y0];
      const along = clamp((px * dx + py * dy) / squared, [0, 1]);
      const distance = Math.hypot(px - along * dx, py - along * dy);
      const strength = 255 * clamp((radius - distance) / (radius * 0.55), [0, 1]);
      for (let channel = 0; channel < c; channel++) {
        const at = (channel * h + y) * w + x;
        ink[at] = erase ? Math.min(ink[at], 255 - strength) : Math.max(ink[at], strength);
      }
    }
  }
}
