/* Pens: the same picture on a canvas or as SVG. */
const FONT =
  'ui-sans-serif, system-ui, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "Noto Color Emoji", sans-serif';

export class CanvasPen {
  constructor(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    this.c = canvas.getContext("2d");
    this.c.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  rect(x, y, w, h, fill) {
    this.c.fillStyle = fill;
    this.c.fillRect(x, y, w, h);
  }
  frame(x, y, w, h, stroke, width) {
    this.c.strokeStyle = stroke;
    this.c.lineWidth = width;
    this.c.strokeRect(x, y, w, h);
  }
  line(x1, y1, x2, y2, stroke, width, alpha) {
    const c = this.c;
    const middle = (y1 + y2) / 2;
    c.globalAlpha = alpha;
    c.strokeStyle = stroke;
    c.lineWidth = width;
    c.lineCap = "round";
    c.beginPath();
    c.moveTo(x1, y1);
    c.bezierCurveTo(x1, middle, x2, middle, x2, y2);
    c.stroke();
    c.globalAlpha = 1;
  }
  text(s, x, y, o) {
    const c = this.c;
    c.save();
    c.translate(x, y);
    if (o.turn) c.rotate(o.turn);
    c.font = `${o.bold ? "600 " : ""}${o.size}px ${FONT}`;
    c.fillStyle = o.color;
    c.textAlign = o.align || "left";
    c.textBaseline = "middle";
    c.fillText(s, 0, 0);
    c.restore();
  }
  cells(x, y, cw, ch, rows, cols, bytes) {
    const off = document.createElement("canvas");
    off.width = cols;
    off.height = rows;
    off.getContext("2d").putImageData(new ImageData(bytes, cols, rows), 0, 0);
    this.c.imageSmoothingEnabled = false;
    this.c.drawImage(off, x, y, cols * cw, rows * ch);
  }
  /** In greys near the middle one, so that what is laid over it is the only colour, and everywhere nearly the same. */
  picture(image, x, y, w, h) {
    this.c.filter = "grayscale(1) contrast(0.5)";
    this.c.drawImage(image, x, y, w, h);
    this.c.filter = "none";
  }
  moved(dx, dy, draw) {
    this.c.save();
    this.c.translate(dx, dy);
    draw();
    this.c.restore();
  }
  /** What `draw` draws is seen inside this rectangle only. */
  clipped(x, y, w, h, draw) {
    this.c.save();
    this.c.beginPath();
    this.c.rect(x, y, w, h);
    this.c.clip();
    draw();
    this.c.restore();
  }
}

export const escape = (s) =>
  String(s)
    .replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`)
    .replace(/[^\P{Cc}\t\n]/gu, "\ufffd");

export class SvgPen {
  constructor(width, height) {
    this.w = width;
    this.h = height;
    this.parts = [];
  }
  rect(x, y, w, h, fill) {
    this.parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" fill="${fill}"/>`);
  }
  frame(x, y, w, h, stroke, width) {
    const box = `x="${x}" y="${y}" width="${w}" height="${h}"`;
    this.parts.push(`<rect ${box} fill="none" stroke="${stroke}" stroke-width="${width}"/>`);
  }
  line(x1, y1, x2, y2, stroke, width, alpha) {
    const m = (y1 + y2) / 2;
    const way = `M${x1} ${y1}C${x1} ${m} ${x2} ${m} ${x2} ${y2}`;
    const look = `stroke="${stroke}" stroke-width="${width}" stroke-opacity="${alpha}"`;
    this.parts.push(`<path d="${way}" fill="none" ${look} stroke-linecap="round"/>`);
  }
  text(s, x, y, o) {
    const anchor = { left: "start", right: "end", center: "middle" }[o.align || "left"];
    const turn = o.turn ? ` rotate(${(o.turn * 180) / Math.PI})` : "";
    const look = `font-size="${o.size}" fill="${o.color}"${o.bold ? ' font-weight="600"' : ""}`;
    this.parts.push(
      `<text transform="translate(${x} ${y})${turn}" ${look} text-anchor="${anchor}" dominant-baseline="central">${escape(s)}</text>`,
    );
  }
  cells(x, y, cw, ch, rows, cols, b) {
    const fixed = (v) => +v.toFixed(2);
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < cols; j++) {
        const k = 4 * (i * cols + j);
        const fill = `rgb(${b[k]},${b[k + 1]},${b[k + 2]})`;
        if (b[k + 3]) this.rect(fixed(x + j * cw), fixed(y + i * ch), fixed(cw), fixed(ch), fill);
      }
    }
  }
  picture(image, x, y, w, h) {
    const box = `x="${x}" y="${y}" width="${w}" height="${h}"`;
    this.parts.push(
      `<image href="${escape(image.src)}" ${box} preserveAspectRatio="none" style="filter:grayscale(1) contrast(0.5)"/>`,
    );
  }
  moved(dx, dy, draw) {
    this.parts.push(`<g transform="translate(${dx} ${dy})">`);
    draw();
    this.parts.push("</g>");
  }
  clipped(x, y, w, h, draw) {
    draw(); // a file shows all of it
  }
  toString() {
    const size = `width="${this.w}" height="${this.h}" viewBox="0 0 ${this.w} ${this.h}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family='${FONT}'>${this.parts.join("")}</svg>`;
  }
}
