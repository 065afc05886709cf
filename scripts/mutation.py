"""Breaks the methods on purpose, one way at a time, and checks that the fast tests notice: `python
scripts/mutation.py [--first N]`.

Each mutation changes one line of a copy of the package; the copy then runs the tests that guard the
numbers. A mutation that no test notices is a hole in the net and makes this script fail. The
result, with the commit it was run on, is kept in
`benchmarks/results/mutation.json`; CI runs the first few.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch  # noqa: F401  (imported once, for all the forks)
import transformers.models.auto.modeling_auto
import transformers.models.bert.modeling_bert  # noqa: F401

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "benchmarks" / "results" / "mutation.json"
TESTS = [
    "tests/test_oracle.py",
    "tests/test_goldens.py",
    "tests/test_identities.py",
    "tests/test_ledger.py",
]
# Of these, the ones that are tried first on a mutation below a folder or in a file: the others would only take longer.
FIRST = {
    "attribution/": [
        "tests/test_goldens.py::test_attributions_of_classifiers",
        "tests/test_goldens.py::test_attributions_of_a_masked_word",
    ],
    "aggregation/flow.py": ["tests/test_identities.py::test_flow_bounds"],
    "instrumentation/linear.py": ["tests/test_ledger.py"],
    "instrumentation/account.py": ["tests/test_ledger.py"],
    "results/ledgers.py": ["tests/test_ledger.py"],
    "methods/hta.py": ["tests/test_identities.py::test_hta_agrees_with_finite_differences"],
}


@dataclass(frozen=True)
class Mutation:
    what: str
    file: str  # below ctxmix_hf/
    old: str
    new: str


MUTATIONS = [
    Mutation(
        "alti: map transposed",
        "methods/alti.py",
        "        return result.mT\n",
        "        return result\n",
    ),
    Mutation(
        "value zeroing: map transposed",
        "methods/value_zeroing.py",
        "raw[b, targets, sources] = self._distance(out, compared[targets]).mT",
        "raw[b, sources, targets] = self._distance(out, compared[targets])",
    ),
    Mutation(
        "norms: residual missing",
        "records.py",
        "diagonal=parts.diagonal + block.residual",
        "diagonal=parts.diagonal",
    ),
    Mutation(
        "rollout: order of the layers turned round",
        "aggregation/rollout.py",
        "current = layer @ current",
        "current = current @ layer",
    ),
    Mutation(
        "attention: largest head instead of the mean",
        "methods/attention.py",
        "layer.attention.mean(dim=1)",
        "layer.attention.amax(dim=1)",
    ),
    Mutation(
        "fixed residual: 0.4 instead of 0.5",
        "methods/attention.py",
        "residual: float = 0.5",
        "residual: float = 0.4",
    ),
    Mutation(
        "attention_res: ratio of the wrong stage",
        "methods/attention.py",
        'mixing_ratio(layer, "norm2")',
        'mixing_ratio(layer, "norm1")',
    ),
    Mutation(
        "ratios: sum of norms turned into own share",
        "methods/ratios.py",
        "(others / (others + kept))",
        "(kept / (others + kept))",
    ),
    Mutation(
        "value bias left out",
        "instrumentation/layout.py",
        "return StandardAttention(a.to(wide), v.to(wide),",
        "return StandardAttention(a.to(wide), (v - v.mean(dim=2, keepdim=True)).to(wide),",
    ),
    Mutation(
        "output bias forgotten",
        "instrumentation/blocks.py",
        "        projection_bias=bias,",
        "        projection_bias=None,",
    ),
    Mutation(
        "first norm without its weight",
        "records.py",
        "        norms=(*parts.norms, norm),",
        "        norms=parts.norms,",
    ),
    Mutation(
        "norm: variance without eps",
        "pieces.py",
        "return (variance + self.eps).sqrt()",
        "return (variance * centred.shape[-1] / (centred.shape[-1] - 1)).sqrt()",
    ),
    Mutation(
        "norm: no centring",
        "pieces.py",
        'return vectors - vectors.mean(dim=-1, keepdim=True) if self.kind == "layer" else vectors',
        "return vectors",
    ),
    Mutation("alti: L2 for L1", "methods/alti.py", "    norm: int = 1", "    norm: int = 2"),
    Mutation(
        "alti: second norm for the first",
        "methods/alti.py",
        '    through: str = "norm1"',
        '    through: str = "norm2"',
    ),
    Mutation(
        "value zeroing: Euclidean for cosine",
        "methods/value_zeroing.py",
        '    distance: str = "cosine"',
        '    distance: str = "euclidean"',
    ),
    Mutation(
        "value zeroing: the value is doubled instead of zeroed",
        "methods/rest.py",
        "u = part.neg_().add_(block.before_norm[b, targets])",
        "u = part.add_(block.before_norm[b, targets])",
    ),
    Mutation(
        "effective attention: null space kept",
        "algebra/nullspace.py",
        "projected = (attention @ basis) @ basis.mT",
        "projected = attention",
    ),
    Mutation(
        "hta x input: without the input",
        "methods/hta.py",
        "    times_input: bool = True",
        "    times_input: bool = False",
    ),
    Mutation(
        "hta x input: no key term", "methods/jacobian.py", "first + 2 * cross + ww * kk", "first"
    ),
    Mutation(
        "globenc: rows normalised before the product",
        "methods/base.py",
        "    rolls_out_shares: ClassVar[bool] = False",
        "    rolls_out_shares: ClassVar[bool] = True",
    ),
    Mutation(
        "layers off by one",
        "recipes.py",
        "stacked[method] = self.maps[method].stacked(places)",
        "stacked[method] = self.maps[method].stacked(places).roll(-1, dims=1)",
    ),
    Mutation(
        "norms of sums: heads side by side",
        "algebra/gram.py",
        "squared = torch.mul(each, weights[:, None], out=None if forms.requires_grad else each).sum(-2)",
        "squared = forms[..., heads, :].square()",
    ),
    Mutation(
        "integrated gradients: left sum",
        "attribution/integrated_gradients.py",
        "torch.arange(1, steps + 1, dtype=torch.float64) / steps",
        "torch.arange(0, steps, dtype=torch.float64) / steps",
    ),
    Mutation(
        "blank-out: sign turned",
        "attribution/ablation.py",
        "(before[None] - after)",
        "(after - before[None])",
    ),
    Mutation(
        "gradients: at another layer",
        "attribution/base.py",
        "self.record.hidden_states[self.layer].detach()",
        "self.record.hidden_states[-1].detach()",
    ),
    Mutation(
        "attention: map transposed",
        "methods/attention.py",
        "layer.attention.mean(dim=1)",
        "layer.attention.mean(dim=1).mT.contiguous()",
    ),
    Mutation(
        "attention_res: diagonal kept in the shares",
        "methods/attention.py",
        "others = weights * (1 - identity)",
        "others = weights",
    ),
    Mutation(
        "norm: map transposed",
        "methods/norms.py",
        "return norms * layer.mask[..., None]",
        "return norms.mT * layer.mask[..., None]",
    ),
    Mutation(
        "norm_res: stage without the residual",
        "methods/norms.py",
        '    stage = "residual"',
        '    stage = "attention"',
    ),
    Mutation(
        "norm_resln: stage without the norm",
        "methods/norms.py",
        '    stage = "norm1"',
        '    stage = "residual"',
    ),
    Mutation(
        "norm_enc: stage without the second norm",
        "methods/norms.py",
        '    stage = "norm2"',
        '    stage = "norm1"',
    ),
    Mutation(
        "norm_fixedres: 0.6 instead of 0.5",
        "methods/norms.py",
        "residual: float = 0.5",
        "residual: float = 0.6",
    ),
    Mutation(
        "alti: what is farther than the output counts",
        "methods/alti.py",
        "closeness.clamp(min=0) *",
        "closeness.abs() *",
    ),
    Mutation(
        "value zeroing: the whole chord instead of half",
        "methods/value_zeroing.py",
        "else gap.square_().mul_(0.5)",
        "else gap",
    ),
    Mutation(
        "value zeroing: raw distances instead of shares",
        "methods/value_zeroing.py",
        "row_shares: bool = True",
        "row_shares: bool = False",
    ),
    Mutation(
        "value zeroing: only the first head",
        "methods/rest.py",
        "chosen = slice(None) if head is None",
        "chosen = slice(1) if head is None",
    ),
    Mutation(
        "effective attention: rank one too small",
        "algebra/nullspace.py",
        "singular > threshold).unsqueeze(-2)",
        "singular > singular[..., -1:]).unsqueeze(-2)",
    ),
    Mutation(
        "hta: before the first layer instead of the embedding norm",
        "methods/hta.py",
        '    with_respect_to: str = "embedding_sum"',
        '    with_respect_to: str = "e0"',
    ),
    Mutation(
        "hta: square not rooted",
        "methods/hta.py",
        "norms = mean.sqrt() * real",
        "norms = mean * real",
    ),
    Mutation(
        "flow: rows not divided",
        "aggregation/flow.py",
        "return to_shares(result) if row_shares else result",
        "return result",
    ),
    Mutation(
        "flow: one layer too few",
        "aggregation/flow.py",
        "flows_from(graph, reach, layer + 1, some)",
        "flows_from(graph, reach, max(layer, 1), some)",
    ),
    Mutation(
        "integrated gradients: baseline forgotten",
        "attribution/integrated_gradients.py",
        "parts = (change * total)",
        "parts = (case.hidden * total)",
    ),
    Mutation(
        "gradient l2: L1 instead",
        "attribution/gradients.py",
        "case.gradient(case.hidden).norm(dim=-1)",
        "case.gradient(case.hidden).abs().sum(dim=-1)",
    ),
    Mutation(
        "gradient x input: without the input",
        "attribution/gradients.py",
        "(case.gradient(case.hidden) * case.hidden).norm(dim=-1)",
        "case.gradient(case.hidden).norm(dim=-1)",
    ),
    Mutation(
        "gradient . input: without the input",
        "attribution/gradients.py",
        "products = (case.gradient(case.hidden) * case.hidden)",
        "products = case.gradient(case.hidden)",
    ),
    Mutation(
        "gradient sum: absolute before the sum",
        "attribution/gradients.py",
        ".sum(dim=-1).abs()",
        ".abs().sum(dim=-1)",
    ),
    Mutation(
        "deeplift: plain gradient",
        "attribution/deeplift.py",
        "if not isinstance(module, RESCALED):\n                return None\n            old_x",
        "if True:\n                return None\n            old_x",
    ),
    Mutation(
        "probability: the logit of another class",
        "attribution/base.py",
        "chosen = logits[rows, wanted]",
        "chosen = logits[rows, 0 * wanted]",
    ),
    Mutation(
        "ledger: a product passes all on to both factors",
        "instrumentation/linear.py",
        "return _scaled_gradient(func(a, b, **kwargs), 0.5)",
        "return _scaled_gradient(func(a, b, **kwargs), 1.0)",
    ),
    Mutation(
        "ledger: a norm's bias has no line",
        "instrumentation/linear.py",
        "    if bias is not None:\n        tap.line(result, bias, tap.name_of(bias))\n    return "
        "_inherit(result, x, root=None",
        "    if False:\n        tap.line(result, bias, tap.name_of(bias))\n    return _inherit(result, x, root=None",
    ),
    Mutation(
        "ledger: deviation of a norm not frozen",
        "instrumentation/linear.py",
        'result = _Norm.apply(x, made, call["weight"], tuple(range(-len(shape), 0)))',
        'result = torch.nn.functional.layer_norm(x, shape, call["weight"], bias, call["eps"])',
    ),
    Mutation(
        "ledger: softmax not frozen",  # it is frozen twice, in the softmax and in the product: either alone is enough
        "instrumentation/linear.py",
        "self.books, self.names, self.rule, self.gates = books, names, rule, gates",
        'self.books, self.names, self.rule, self.gates = books, names, "through", gates',
    ),
    Mutation(
        "ledger: fused attention not frozen",
        "instrumentation/linear.py",
        '    if tap.rule == "through":\n        context = _through_attention(tap, call)',
        "    if True:\n        context = _through_attention(tap, call)",
    ),
    Mutation(
        "ledger: edges transposed",
        "instrumentation/account.py",
        "found[item.layer] = edges if item.layer not in found",
        "found[item.layer] = edges.mT if item.layer not in found",
    ),
    Mutation(
        "ledger: rows one layer off",
        "instrumentation/account.py",
        "rows[layer] = layout.standard((g * value)",
        "rows[layer + 1] = layout.standard((g * value)",
    ),
    Mutation(
        "ledger: spread over the signed scores",
        "results/ledgers.py",
        "        size = self.scores.abs()\n        shares",
        "        size = self.scores\n        shares",
    ),
]


def survives(mutation: Mutation, workplace: Path) -> bool:
    """True where no test noticed."""
    copy = workplace / "ctxmix_hf"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "ctxmix_hf", copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / mutation.file
    text = path.read_text(encoding="utf-8")
    assert mutation.old in text, f"{mutation.what}: its line is not in {mutation.file} any more"
    path.write_text(text.replace(mutation.old, mutation.new, 1), encoding="utf-8")
    log = workplace / "log.txt"
    child = (
        os.fork()
    )  # with torch and transformers imported, which takes longer than most of the tests
    if child == 0:
        code = 9
        try:
            file = log.open("w")
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.chdir(workplace)
            sys.path.insert(0, str(workplace))
            import ctxmix_hf

            if Path(ctxmix_hf.__file__).is_relative_to(workplace):
                quiet = [
                    "-W",
                    "ignore::pytest.PytestAssertRewriteWarning",
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:xdist",
                ]
                first = [
                    test
                    for place, tests in FIRST.items()
                    if mutation.file.startswith(place)
                    for test in tests
                ]
                code = int(pytest.main(["-x", "-q", *quiet, *first])) if first else 0
                code = code or int(pytest.main(["-x", "-q", *quiet, *TESTS]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        raise SystemExit(f"{mutation.what}: the tests could not be run:\n{log.read_text()[-2000:]}")
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--first", type=int, help="only the first N mutations, and nothing is written"
    )
    parser.add_argument("--only", help="mutations with this in their name, and nothing is written")
    asked = parser.parse_args()
    sys.dont_write_bytecode = True
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        workplace = Path(folder) / "work"
        workplace.mkdir()
        shutil.copytree(
            ROOT / "tests",
            workplace / "tests",
            ignore=shutil.ignore_patterns("__pycache__", "artifacts"),
        )
        shutil.copy(ROOT / "pyproject.toml", workplace)
        if (ROOT.parent / "shared").is_dir():
            (Path(folder) / "shared").symlink_to((ROOT.parent / "shared").resolve())
        for mutation in [
            m for m in MUTATIONS[: asked.first] if asked.only is None or asked.only in m.what
        ]:
            alive = survives(mutation, workplace)
            rows.append({"mutation": mutation.what, "noticed": not alive})
            print(f"{'SURVIVED' if alive else 'noticed '}  {mutation.what}", flush=True)
    if asked.first is None and asked.only is None:
        TARGET.write_text(
            json.dumps({"commit": commit, "tests": TESTS, "mutations": rows}, indent=1) + "\n"
        )
    noticed = sum(row["noticed"] for row in rows)
    print(f"{noticed} of {len(rows)} mutations noticed")
    return 0 if noticed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
