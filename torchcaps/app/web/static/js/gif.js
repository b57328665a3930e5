// A small GIF89a encoder: one palette for all frames, LZW, endless loop.

const bytes = (...values) => values;
const short = (value) => [value & 255, value >> 8];

// Frames are ImageData of one size. Returns a Blob.
export function encodeGif(frames, milliseconds) {
  const { width, height } = frames[0];
  const palette = choosePalette(frames);
  const nearest = nearestIn(palette);
  const out = [
    ...[..."GIF89a"].map((letter) => letter.charCodeAt(0)),
    ...short(width), ...short(height), ...bytes(0xf7, 0, 0), ...palette.flat(),
    ...bytes(0x21, 0xff, 11), ...[..."NETSCAPE2.0"].map((letter) => letter.charCodeAt(0)), ...bytes(3, 1, 0, 0, 0),
  ];
  const parts = [Uint8Array.from(out)];
  for (const frame of frames) {
    const delay = Math.round(milliseconds / 10);
    const head = [0x21, 0xf9, 4, 4, ...short(delay), 0, 0, 0x2c, 0, 0, 0, 0, ...short(width), ...short(height), 0, 8];
    const indices = new Uint8Array(width * height);
    for (let at = 0; at < indices.length; at++) indices[at] = nearest(frame.data, at * 4);
    parts.push(Uint8Array.from(head), blocks(compress(indices)), Uint8Array.of(0));
  }
  parts.push(Uint8Array.of(0x3b));
  return new Blob(parts, { type: "image/gif" });
}

const key = (data, at) => ((data[at] >> 4) << 8) | ((data[at + 1] >> 4) << 4) | (data[at + 2] >> 4);

// The 256 most frequent colours, of those that differ in their upper four bits.
function choosePalette(frames) {
  const counts = new Map();
  for (const { data } of frames) {
    for (let at = 0; at < data.length; at += 4) {
      const name = key(data, at);
      const seen = counts.get(name);
      if (seen) seen.count++;
      else counts.set(name, { count: 1, colour: [data[at], data[at + 1], data[at + 2]] });
    }
  }
  const chosen = [...counts.values()].sort((a, b) => b.count - a.count).slice(0, 256).map((entry) => entry.colour);
  while (chosen.length < 256) chosen.push([0, 0, 0]);
  return chosen;
}

function nearestIn(palette) {
  const known = new Map();
  return (data, at) => {
    const name = key(data, at);
    if (!known.has(name)) {
      const distance = ([r, g, b]) => (r - data[at]) ** 2 + (g - data[at + 1]) ** 2 + (b - data[at + 2]) ** 2;
      known.set(name, palette.reduce((best, colour, k) => (distance(colour) < distance(palette[best]) ? k : best), 0));
    }
    return known.get(name);
  };
}

// LZW with codes of 9 to 12 bits over an alphabet of 256.
function compress(indices) {
  const [CLEAR, END, MOST] = [256, 257, 4095];
  const out = [];
  let [buffer, filled, size, next] = [0, 0, 9, 258];
  let table = new Map();
  const emit = (code) => {
    buffer |= code << filled;
    filled += size;
    while (filled >= 8) {
      out.push(buffer & 255);
      buffer >>= 8;
      filled -= 8;
    }
  };
  emit(CLEAR);
  let prefix = indices[0];
  for (let at = 1; at < indices.length; at++) {
    const index = indices[at];
    const name = (prefix << 8) | index;
    const code = table.get(name);
    if (code !== undefined) {
      prefix = code;
      continue;
    }
    emit(prefix);
    if (next > MOST) {
      emit(CLEAR);
      table = new Map();
      [size, next] = [9, 258];
    } else {
      table.set(name, next);
      if (next === 1 << size) size++;
      next++;
    }
    prefix = index;
  }
  emit(prefix);
  emit(END);
  if (filled > 0) out.push(buffer & 255);
  return out;
}

function blocks(data) {
  const out = new Uint8Array(data.length + Math.ceil(data.length / 255));
  let to = 0;
  for (let at = 0; at < data.length; at += 255) {
    const block = data.slice(at, at + 255);
    out[to++] = block.length;
    out.set(block, to);
    to += block.length;
  }
  return out;
}
