"""Every command and option, in argparse. Names of methods and models are checked later, where they are known."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ctxmix_hf import __version__
from ctxmix_hf.cli import options

EXAMPLES = """examples:
  ctxmix explain                                            a sentence on the model in the box
  ctxmix explain "She sang well." --model bert-base-uncased --method alti --target "[CLS]"
  ctxmix doctor roberta-base                                is it exact on this model?
  ctxmix precompute --dataset reviews.csv --text-column review --methods alti,value_zeroing --out maps/
  eval "$(ctxmix completion bash)"                          completion in this shell

exit codes: 0 done, 1 failed or a check did not pass, 2 cannot be done as asked, 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """A wrong option is one line, like every other error."""

    def error(self, message: str) -> Any:
        self.exit(2, f"ctxmix: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ctxmix", description="Which tokens was each representation made from?", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"ctxmix {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True, parser_class=_Parser)
    for name, about, examples, add in COMMANDS:
        lines = "".join(f"  {line}\n" for line in examples)
        made = commands.add_parser(
            name, help=about, description=about, epilog=f"examples:\n{lines}", formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add(made)
        options.common(made)
    return parser


Command = tuple[str, str, tuple[str, ...], Callable[[argparse.ArgumentParser], None]]

COMMANDS: tuple[Command, ...] = (
    ("explain", "the map of a sentence, from the words to a token", (
        "ctxmix explain",
        'ctxmix explain "The pictures of Martha do not disgust Anne." --method value_zeroing --target "[CLS]"',
        "ctxmix explain --file sentences.txt --json > maps.jsonl",
        'echo "A fine film." | ctxmix explain - --model ctxmix/sentiment --method integrated_gradients',
        'ctxmix explain "A fine film." --out film.html',
    ), options.explain),
    ("compare", "methods on one sentence, two sentences, or two models", (
        'ctxmix compare "The keys to the cabinet [MASK] here." --methods alti,value_zeroing,attention_rollout',
        'ctxmix compare "The key [MASK] here." "The keys [MASK] here." --method alti',
        'ctxmix compare "A fine film." --model bert-base-uncased --other-model my/finetuned --out difference.html',
    ), options.compare),
    ("methods", "every method, with its paper, equation and cost", (
        "ctxmix methods", "ctxmix methods --kind layer", "ctxmix methods alti", "ctxmix methods --json",
    ), options.methods),
    ("models", "model families known to be exact, and the models in the box", (
        "ctxmix models", "ctxmix models --level 2", "ctxmix models deberta", "ctxmix models --json",
    ), options.models),
    ("doctor", "is it exact on this model? layer by layer, method by method (exit code 1 if not)", (
        "ctxmix doctor bert-base-uncased", "ctxmix doctor ./my-model --json",
    ), options.doctor),
    ("evaluate", "evidence for and against the methods", (
        "ctxmix evaluate --suite agreement --limit 50", "ctxmix evaluate --suite sentiment --out results/",
    ), options.evaluate),
    ("precompute", "the maps of a whole dataset, into a store; run again after a stop, it continues", (
        "ctxmix precompute --dataset reviews.csv --text-column review --methods alti --out maps/",
        "ctxmix precompute --dataset stanfordnlp/sst2 --split validation --text-column sentence \\",
        "      --model textattack/bert-base-uncased-SST-2 --methods alti,value_zeroing --out maps/ --workers 4",
    ), options.precompute),
    ("push", "a store to a dataset repository on the Hub", ("ctxmix push maps/ me/maps --private", "ctxmix push maps/ me/maps --tag v1"),
     options.push),
    ("pull", "a store from the Hub, verified", ("ctxmix pull me/maps --out maps/", "ctxmix pull me/maps --methods alti --revision v1"),
     options.pull),
    ("demo", "the page of the Space on this machine", ("ctxmix demo", "ctxmix demo --port 8080 --host 0.0.0.0"), options.demo),
    ("bench", "what methods cost on a model, as multiples of the plain forward", (
        "ctxmix bench", "ctxmix bench --model bert-base-uncased --methods alti,globenc --tokens 128",
    ), options.bench),
    ("completion", "a completion script for a shell", (
        'eval "$(ctxmix completion bash)"', "ctxmix completion fish > ~/.config/fish/completions/ctxmix.fish",
    ), options.completion),
)  # fmt: skip
