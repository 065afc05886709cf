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
// Words that carry no content of their own, by language: a finding sets the first source against a word that does.
const LITTLE = [
  // English
  "a an the this that these those of to in on at by for with from about as into over under near between " +
    "and or but if than then so because while which who whom whose what where when how " +
    "i you he she it we they me him her us them my your his its our their " +
    "am is are was were be been being do does did has have had will would can could may might shall should must",
  // German, French, Spanish, Italian, Russian, Hebrew, Arabic: the most frequent ones
  "der die das den dem des ein eine einen einem und oder aber dass wie in im an am auf aus bei mit von zu zum für ich er sie es wir ist sind war hat sich",
  "le la les l un une des du de d et ou mais que qu qui dans en sur à au aux par pour avec ce cette je il elle on nous se sa son est sont était a ne",
  "el la los las un una y o pero que de del al a en con por para su se lo es son era ha como",
  "il lo la i gli le un una e o ma che di del della a al in nel con su per è sono era ha si",
  "и а но или что как в во на с к по от до из у о за для он она они я мы это был",
  "של את על עם אל מן הוא היא הם זה זאת אני כי אם או גם היה לא",
  "في من على إلى عن مع هذا هذه التي الذي أن إن كان هو هي أو ما لا قد",
].map((words) => new Set(words.split(" ")));

const plain = (name) => name.replace(/[\u2066-\u2069]/g, "").toLowerCase();

/** The little words of a text's language: of all lists the one that most of its words stand in, and none where no word does. */
export function littleWords(names) {
  const hits = LITTLE.map((list) => names.filter((name) => list.has(plain(name))).length);
  const most = Math.max(...hits);
  return new Set(
    most ? LITTLE.filter((_, k) => hits[k] === most).flatMap((list) => [...list]) : [],
  );
}

/** Is it a word with content: not punctuation, not a special token, not one of the little ones? */
export const content = (name, little = LITTLE[0]) =>
  /\p{L}|\p{N}/u.test(name) && !/^[[<].*[\]>]$/.test(plain(name)) && !little.has(plain(name));

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
const token = (word) => ({ word: /\p{L}|\p{N}/u.test(word) ? word : `“${word}”` }); // a full stop is seen
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
    little = littleWords(names),
    second = rest.find((j) => row[j] > 0 && content(names[j], little)) ?? rest[0],
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

/**
 * One sentence about the target in all heads of a layer: which took most from one source, and whether others do the same.
 * rows: by head the target's row; wholes: the sums of these rows, hidden tokens included.
 */
export function headPhrases({ names, rows, wholes, own, targets, means }) {
  if (!targets.length) return [];
  const who = between(targets.map(token), " + ");
  const others = names.map((_, j) => j).filter((j) => !own.includes(j));
  const share = (h, j) => (wholes[h] > 0 ? rows[h][j] / wholes[h] : 0);
  const firsts = rows.map((_, h) =>
    others.reduce((best, j) => (share(h, j) > share(h, best) ? j : best), others[0]),
  );
  const heads = rows.map((_, h) => h).sort((a, b) => share(b, firsts[b]) - share(a, firsts[a]));
  const most = heads[0];
  const source = firsts[most];
  if (source === undefined || !(share(most, source) > 0))
    return tell`${who} took nothing from other tokens in any head (${means}).`;
  const took = tell`In head ${most} ${who} took ${percent(share(most, source))} from ${token(names[source])}`;
  if (rows.length === 1) return tell`${took} (${means}).`;
  const next = heads
    .filter((h) => h !== most)
    .reduce((best, h) => (share(h, source) > share(best, source) ? h : best), heads[1]);
  const ratio = share(next, source) > 0 ? times(share(most, source) / share(next, source)) : "";
  const beside = ratio ? `, ${ratio} in head ${next}` : ", and in no other head anything";
  const same = firsts.filter((j, h) => j === source && share(h, j) > 0).length;
  const many =
    same === 1 ? "no other head takes" : `${count(same)} of ${count(rows.length)} heads take`;
  return tell`${took}${beside}; ${many} most from it (${means}).`;
}
