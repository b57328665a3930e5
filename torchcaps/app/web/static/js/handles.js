// The frame around a layer: drag it to move, its knob to turn, its corner to scale, its side to slant.

import { svg } from "./dom.js";
import { inkBox, slantWord, toCanvas } from "./layers.js";

export function attachHandles(overlay, compose) {
  const { state } = compose;
  const [, h, w] = compose.shape;
  // As large on the screen whatever the size of the images.
  const [KNOB, REACH] = [0.032 * w, 0.11 * w];
  overlay.setAttribute("viewBox", `0 0 ${w} ${h}`);
  overlay.style.setProperty("--pixel", w / 36);
  let drag = null;

  const toPixels = (event) => {
    const box = overlay.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * w, ((event.clientY - box.top) / box.height) * h];
  };
  const centre = (layer) => [w / 2 + layer.x, h / 2 + layer.y];

  const gestures = {
    move: (layer, start, from, to) => ({ x: start.x + to[0] - from[0], y: start.y + to[1] - from[1] }),
    turn: (layer, start, from, to) => {
      const [cx, cy] = centre(start);
      const turned = Math.atan2(to[1] - cy, to[0] - cx) - Math.atan2(from[1] - cy, from[0] - cx);
      const degrees = start.turn + (turned * 180) / Math.PI;
      return { turn: ((((degrees + 180) % 360) + 360) % 360) - 180 };
    },
    size: (layer, start, from, to) => {
      const [cx, cy] = centre(start);
      return { size: (start.size * Math.hypot(to[0] - cx, to[1] - cy)) / Math.max(1, Math.hypot(from[0] - cx, from[1] - cy)) };
    },
    slant: (layer, start, from, to) => {
      const angle = (start.turn * Math.PI) / 180;
      const along = (to[0] - from[0]) * Math.cos(angle) + (to[1] - from[1]) * Math.sin(angle);
      return { slant: start.slant + along / (start.size * 8) };
    },
  };

  overlay.addEventListener("pointerdown", (event) => {
    const { layer: index, gesture } = event.target.dataset;
    if (compose.tool !== "move" || !gesture || event.button !== 0) return;
    event.preventDefault();
    overlay.setPointerCapture(event.pointerId);
    const layer = state.layers[Number(index)];
    drag = { layer, start: { ...layer }, from: toPixels(event), gesture };
    compose.select(Number(index));
  });
  overlay.addEventListener("pointermove", (event) => {
    if (drag) compose.move(drag.layer, gestures[drag.gesture](drag.layer, drag.start, drag.from, toPixels(event)));
  });
  for (const end of ["pointerup", "pointercancel"]) overlay.addEventListener(end, () => (drag = null));

  function frame(layer, index) {
    const [halfWidth, halfHeight] = inkBox(compose.sample(layer), state.samples.shape);
    const point = (u, v) => toCanvas(layer, [h, w], u, v);
    const corners = [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([u, v]) => point(u * halfWidth, v * halfHeight));
    const isSelected = index === state.selected;
    const body = svg("polygon", {
      points: corners.map((corner) => corner.join()).join(" "), class: isSelected ? "frame selected" : "frame",
      "data-layer": index, "data-gesture": "move",
    });
    if (!isSelected) return [body];
    const top = point(0, -halfHeight);
    const knob = point(0, -halfHeight - REACH / layer.size);
    const handle = (gesture, [x, y], title) => {
      const inside = [Math.min(w - KNOB, Math.max(KNOB, x)), Math.min(h - KNOB, Math.max(KNOB, y))];
      return svg("circle", { cx: inside[0], cy: inside[1], r: KNOB, class: `handle ${gesture}`, "data-layer": index, "data-gesture": gesture },
        svg("title", {}, title));
    };
    return [
      body,
      svg("line", { x1: top[0], y1: top[1], x2: knob[0], y2: knob[1], class: "stem" }),
      handle("turn", knob, "Turn"),
      handle("size", corners[2], "Scale"),
      handle("slant", point(-halfWidth, -halfHeight), slantWord(state.about)),
    ];
  }

  return {
    show() {
      const order = state.layers.map((_, index) => index).sort((a) => (a === state.selected ? 1 : -1));
      const parts = compose.tool === "move" ? order.flatMap((index) => frame(state.layers[index], index)) : [];
      overlay.replaceChildren(...parts);
    },
  };
}
