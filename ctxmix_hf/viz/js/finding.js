/* What a picture says, in one sentence: computed from the numbers that are drawn, never canned. */
const COUNTS = [
  "no",
  "one",
  "two",
  "three",
  "four",
  "five",
  "six",
  "seven",
  "eight",
  "nine",
  "ten",
  "eleven",
  "twelve",
];
export const count = (n) => COUNTS[n] || String(n);
export const percent = (v) => (v >= 0.1 ? `${Math.round(100 * v)} %` : `${(100 * v).toFixed(1)} %`);
// Words of English that carry no content of their own: a finding sets the first source against a word that does.
const LITTLE = new Set(
  (
    "a an the this that these those of to in on at by for with from about as into over under near between " +
    "and or but if than then so because while which who whom whose what where when how " +
    "i you he she it we they me him her us them my your his its our their " +
    "am is are was were be been being do does did has have had will would can could may might shall should must"
  ).split(" "),
);

/** Is it a word with content: not punctuation, not a special token, not one of the little ones? */
export const content = (name) => {
  const plain = name.replace(/[\u2066-\u2069]/g, "");
  return (
    /\p{L}|\p{N}/u.test(plain) && !/^[[<].*[\]>]$/.test(plain) && !LITTLE.has(plain.toLowerCase())
  );
};

const signed = (v) => `${v >= 0 ? "+" : "−"}${Math.abs(v).toPrecision(2)}`;

/** How many times as much, as people say it. */
export function times(ratio) {
  if (!isFinite(ratio)) return "and nothing";
  if (ratio < 1.08) return "as much as";
  if (ratio > 1.9 && ratio < 2.1) return "twice as much as";
  const whole = Math.round(ratio);
  if (whole >= 3 && Math.abs(ratio - whole) < 0.1) return `${count(whole)} times as much as`;
  return `${ratio < 10 ? ratio.toFixed(1) : whole} times as much as`;
}

/** Which layers the numbers stand for: `all six layers`, `layers 1 to 3`, `within layer 3`. */
export function reach({ within, layer, first, last }) {
  if (within) return `within layer ${layer}`;
  if (layer === first) return first === last ? "its one layer" : `layer ${layer}`;
  return layer === last && first === 1
    ? last === 2
      ? "both layers"
      : `all ${count(last)} layers`
    : `layers ${first} to ${layer}`;
}

/** Parts of a sentence: prose as strings, tokens as { word }. */
const token = (word) => ({ word });
const tell = (prose, ...values) =>
  prose.flatMap((text, k) => [text, k < values.length ? values[k] : ""]).flat(3);
const between = (parts, mark) => parts.flatMap((part, k) => (k ? [mark, part] : [part]));

/** The same as plain text. */
export const sentence = (asked) =>
  phrases(asked)
    .map((part) => part.word ?? part)
    .join("");

/**
 * One sentence about the target's row, in parts, so that tokens can be set off from the prose.
 * names, row: label and value of each source; own: places of the target; whole: the sum of the row, hidden tokens included;
 * signed: a difference of two maps; targets: labels of the chosen rows; means: method and layers;
 * even: each source's share if every piece gave the same, where that is asked for.
 */
export function phrases({ names, row, own, whole, isSigned, targets, means, even }) {
  if (!targets.length) return [];
  const who = between(targets.map(token), " + "),
    others = names.map((_, j) => j).filter((j) => !own.includes(j));
  if (isSigned) {
    const order = others.sort((a, b) => row[b] - row[a]),
      most = order[0],
      least = order[order.length - 1],
      said = [];
    if (most !== undefined && row[most] > 0)
      said.push(tell`more from ${token(names[most])} (${signed(row[most])})`);
    if (least !== undefined && row[least] < 0)
      said.push(tell`less from ${token(names[least])} (${signed(row[least])})`);
    return said.length
      ? tell`On the second side ${who} took ${between(said, ", ")} (${means}).`
      : tell`${who} took the same on both sides (${means}).`;
  }
  const [first, ...rest] = others.sort((a, b) => row[b] - row[a]),
    second = rest.find((j) => row[j] > 0 && content(names[j])) ?? rest[0],
    kept = own.reduce((sum, j) => sum + row[j], 0) / whole;
  if (first === undefined || !(whole > 0) || !(row[first] > 0))
    return tell`${who} took nothing from other tokens (${means}).`;
  const more =
    second === undefined
      ? ""
      : row[second] > 0
        ? tell`, ${times(row[first] / row[second])} from ${token(names[second])}`
        : ", and nothing from any other token";
  const equal = even ? ` (all-equal: ${percent(even[first])})` : "";
  return tell`${who} took ${percent(row[first] / whole)} from ${token(names[first])}${equal}${more}; ${percent(kept)} is its own (${means}).`;
}
