"""Every command and option, in argparse. Names of methods and models are checked later, where they are known."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ctxmix_hf import __version__
from ctxmix_hf.cli import options

EXAMPLES = """examples:
  ctxmix explain                                            a sentence on the bundled model
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
        prog="ctxmix",
        description="Which tokens was each representation made from?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ctxmix {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="command", required=True, parser_class=_Parser
    )
    for name, about, examples, add in COMMANDS:
        lines = "".join(f"  {line}\n" for line in examples)
        made = commands.add_parser(
            name,
            help=about,
            description=about,
            epilog=f"examples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add(made)
        options.common(made)
    return parser


Command = tuple[str, str, tuple[str, ...], Callable[[argparse.ArgumentParser], None]]

COMMANDS: tuple[Command, ...] = (
    (
        "explain",
        "the map of a sentence, from the words to a token",
        (
            "ctxmix explain",
            'ctxmix explain "The pictures of Martha do not disgust Anne." --method value_zeroing --target "[CLS]"',
            "ctxmix explain --file sentences.txt --json > maps.jsonl",
            'echo "A fine film." | ctxmix explain - --model ctxmix/sentiment --method integrated_gradients',
            'ctxmix explain "A fine film." --out film.html',
        ),
        options.explain,
    ),
    (
        "ledger",
        "why this output? contributions of the words that add up to the model's own number",
        (
            "ctxmix ledger",
            'ctxmix ledger "The keys to the cabinet [MASK] on the table." --class are --foil is',
            'ctxmix ledger "A fine film." --model ctxmix/sentiment --out film.html',
        ),
        options.ledger,
    ),
    (
        "compare",
        "methods on one sentence, two sentences, or two models",
        (
            'ctxmix compare "The keys to the cabinet [MASK] here." --methods alti,value_zeroing,attention_rollout',
            'ctxmix compare "The key [MASK] here." "The keys [MASK] here." --method alti',
            'ctxmix compare "A fine film." --model bert-base-uncased --other-model my/finetuned --out difference.html',
        ),
        options.compare,
    ),
    (
        "similarity",
        "which word of this text matched which word of that one? pairs that sum to the model's own similarity",
        (
            'ctxmix similarity "A new medicine." "A physician prescribed a drug." --model '
            "sentence-transformers/all-MiniLM-L6-v2",
            'ctxmix similarity "The cat sleeps." "A dog sleeps here." --pooling mean --top 3',
            'ctxmix similarity "The cat sleeps." "A dog sleeps here." --out pairs.html',
        ),
        options.similarity,
    ),
    (
        "rank",
        "why did this document rank first? a document per line, in the model's own order with the "
        "words that put it there",
        (
            'ctxmix rank --query "How do I reset my password?" docs.txt --model sentence-transformers/all-MiniLM-L6-v2',
            'ctxmix rank --query "reset password" docs.txt --top 3 --out ranking.html',
            'grep -i settings faq.txt | ctxmix rank --query "reset password" - --json',
        ),
        options.rank,
    ),
    (
        "methods",
        "every method, with its paper, equation and cost",
        (
            "ctxmix methods",
            "ctxmix methods --kind layer",
            "ctxmix methods alti",
            "ctxmix methods --json",
        ),
        options.methods,
    ),
    (
        "models",
        "model families known to be exact, and the bundled models",
        (
            "ctxmix models",
            "ctxmix models --level 2",
            "ctxmix models deberta",
            "ctxmix models --json",
        ),
        options.models,
    ),
    (
        "doctor",
        "is it exact on this model? layer by layer, method by method (exit code 1 if not)",
        (
            "ctxmix doctor bert-base-uncased",
            "ctxmix doctor ./my-model --json",
        ),
        options.doctor,
    ),
    (
        "certify",
        "a small JSON of what was proved of a model, or the check of one (exit code 1 if it does not hold)",
        (
            "ctxmix certify bert-base-uncased --out certificate.json",
            "ctxmix certify --check certificate.json",
            "ctxmix certify ./my-copy --check certificate.json",
        ),
        options.certify,
    ),
    (
        "evaluate",
        "evidence for and against the methods",
        (
            "ctxmix evaluate --suite agreement --limit 50",
            "ctxmix evaluate --suite sentiment --out results/",
            "ctxmix evaluate --suite sentiment --model me/model --to-hub me/evidence --model-repo me/model",
        ),
        options.evaluate,
    ),
    (
        "papers",
        "the five papers' tables and figures on your models, with the papers' numbers beside them",
        (
            "ctxmix papers --out ctxmix-papers/ --limit 20",
            "ctxmix papers --paper globenc --classifier textattack/bert-base-uncased-SST-2 "
            "--data sst2=dev.tsv --out ctxmix-papers/",
            'ctxmix papers --paper value_zeroing --item "Table 3" --data blimp=blimp/ --out ctxmix-papers/',
        ),
        options.papers,
    ),
    (
        "tune",
        "prompt-tune a masked LM on target against foil, for the papers' figures before and after tuning",
        (
            "ctxmix tune --masked-lm bert-base-uncased --data blimp/ --out tuned/",
            "ctxmix papers --paper value_zeroing --masked-lm tuned/model --before bert-base-uncased "
            "--data blimp=blimp/ --out ctxmix-papers/",
        ),
        options.tune,
    ),
    (
        "precompute",
        "the maps of a whole dataset, into a store; run again after a stop, it continues",
        (
            "ctxmix precompute --dataset reviews.csv --text-column review --methods alti --out maps/",
            "ctxmix precompute --dataset stanfordnlp/sst2 --split validation --text-column sentence \\",
            "      --model textattack/bert-base-uncased-SST-2 --methods alti,value_zeroing --out maps/ --workers 4",
        ),
        options.precompute,
    ),
    (
        "push",
        "a store to a dataset repository on the Hub",
        ("ctxmix push maps/ me/maps --private", "ctxmix push maps/ me/maps --tag v1"),
        options.push,
    ),
    (
        "pull",
        "a store from the Hub, verified",
        ("ctxmix pull me/maps --out maps/", "ctxmix pull me/maps --methods alti --revision v1"),
        options.pull,
    ),
    (
        "demo",
        "the page of the Space on this machine",
        ("ctxmix demo", "ctxmix demo --port 8080 --host 0.0.0.0", "ctxmix demo --mcp"),
        options.demo,
    ),
    (
        "mcp",
        "tools for an assistant over stdio (Model Context Protocol): why did this encoder say that?",
        ("ctxmix mcp", "ctxmix mcp --views pictures/"),
        options.mcp,
    ),
    (
        "bench",
        "what methods cost on a model, as multiples of the plain forward",
        (
            "ctxmix bench",
            "ctxmix bench --model bert-base-uncased --methods alti,globenc --tokens 128",
        ),
        options.bench,
    ),
    (
        "completion",
        "a completion script for a shell",
        (
            'eval "$(ctxmix completion bash)"',
            "ctxmix completion fish > ~/.config/fish/completions/ctxmix.fish",
        ),
        options.completion,
    ),
)
