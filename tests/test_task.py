"""`pipeline("context-mixing")` is known whatever was imported first, and `import ctxmix_hf` imports
neither torch nor transformers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ctxmix_hf as cm
from ctxmix_hf.errors import OptionError
from tests.cli.conftest import environment

BOX = str(Path(cm.__file__).parent / "models" / "agreement")
USE = f"""
mix = pipeline("context-mixing", model={BOX!r}, device="cpu")
made = mix("The boys [MASK] tired.")
assert type(made).__name__ == "ContextMixingMap" and made.method == "alti", made
from transformers.pipelines import PIPELINE_REGISTRY, get_supported_tasks
assert get_supported_tasks().count("context-mixing") == 1
assert not any("ctxmix" in type(finder).__module__ for finder in sys.meta_path), sys.meta_path
"""
ORDERS = {
    "before": "import ctxmix_hf\nfrom transformers import pipeline",
    "after": "from transformers import pipeline\nimport ctxmix_hf",
    "between": "import transformers\nimport ctxmix_hf\npipeline = transformers.pipeline",
    "only our names": "from ctxmix_hf import ContextMixingMap\nfrom transformers import pipeline",
    "our pipeline first": "import ctxmix_hf.pipeline\nfrom transformers import pipeline",
    "our pipeline last": "from transformers import pipeline\nimport ctxmix_hf.pipeline\nctxmix_hf.pipeline.register()",
    "the submodule": "import ctxmix_hf\nfrom transformers.pipelines import pipeline",
    "after a look": "import ctxmix_hf, importlib.util\nassert importlib.util.find_spec('transformers.pipelines')\n"
    "from transformers import pipeline",
    "reloaded": "import ctxmix_hf, importlib\nimportlib.reload(ctxmix_hf)\nfrom transformers import pipeline",
    "two threads": "import ctxmix_hf, threading\nwork = [threading.Thread(target=exec, args=('from "
    "transformers import pipeline', {})),"
    " threading.Thread(target=exec, args=('import ctxmix_hf.pipeline', {}))]\n"
    "[t.start() for t in work]\n[t.join() for t in work]\nfrom transformers import pipeline",
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", "import sys\n" + code],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=240,
    )


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(name, marks=[] if name in ("before", "after") else pytest.mark.slow)
        for name in ORDERS
    ],
)
def test_the_task_is_known_in_every_order(order: str) -> None:
    done = python(ORDERS[order] + USE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "already registered" not in done.stderr


def test_importing_stays_light_and_other_tasks_do_not_load_ours() -> None:
    done = python(
        "import ctxmix_hf\nassert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "from transformers import pipeline\nfrom transformers.pipelines import SUPPORTED_TASKS\n"
        "assert SUPPORTED_TASKS['context-mixing']['type'] == 'text'\n"
        "assert 'ctxmix_hf.pipeline' not in sys.modules and 'ctxmix_hf.results.maps' not in sys.modules\n"
        "assert 'default' not in SUPPORTED_TASKS['context-mixing']\n"
        "assert SUPPORTED_TASKS['context-mixing']['impl'] is ctxmix_hf.ContextMixingPipeline\n"
        "print('fine')"
    )
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


def test_a_pipeline_without_a_model_says_what_is_missing() -> None:
    from transformers import pipeline

    with pytest.raises(OptionError, match=r"name one, pipeline\('context-mixing', model=...\)"):
        pipeline("context-mixing")
