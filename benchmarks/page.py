"""How long a visitor waits, in Chromium on this machine: `python benchmarks/page.py`.

Server up to page usable, Enter to the map of 20 tokens, a layer change at 60 tokens (goal: 50 ms median), and the
first sign (the page's own) and first progress (the server's) of the agreement matrix (goal: 300 ms). Written to
benchmarks/results/page.json with the commit and
the load of the machine; tests/demo/test_times.py holds every later run to ten times these values.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.serving import commit, serve  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "page.json"
TWENTY = "The {} boys that like the old teacher near the school of the city [MASK] very tired ."
SIXTY = " ".join(["The boys like the girl and the old teacher ."] * 6) + " They [MASK] here ."
USABLE = "#map-main canvas[aria-busy=false]"
WORDS = ("first", "second", "third", "fourth", "fifth")


def measure(page: Any, url: str) -> dict[str, float]:
    """Milliseconds by name, on an open browser page."""
    at = time.perf_counter()
    page.goto(url)
    page.wait_for_selector(USABLE, timeout=60000)
    out = {"page_usable": 1000 * (time.perf_counter() - at)}
    maps = []
    for word in WORDS:
        text = TWENTY.format(word)
        page.fill("#text textarea", text)
        maps.append(
            page.evaluate(
                """(text) => new Promise((done) => { const from = performance.now();
                const look = () => { const c = document.querySelector('#map-main canvas');
                  if (c && c.dataset.text === text && c.getAttribute('aria-busy') === 'false')
                    done(performance.now() - from);
                  else setTimeout(look, 5); };
                const box = document.querySelector('#text textarea');
                box.dispatchEvent(new KeyboardEvent('keypress', {key: 'Enter', bubbles: true})); look(); })""",
                text,
            )
        )
    out["enter_to_map_20_tokens"] = statistics.median(maps)
    page.fill("#text textarea", SIXTY)
    page.press("#text textarea", "Enter")
    page.wait_for_function(
        "() => { const c = document.querySelector('#map-main canvas'); "
        "return c.dataset.text.startsWith('The boys like') && c.getAttribute('aria-busy') === 'false'; }",
        timeout=60000,
    )
    changes = page.evaluate(
        """() => { const w = document.querySelector('#map-main .cmx').ctxmix;
        return [1, 2, 3, 4, 5, 6, 1, 3, 5, 2, 4, 6].map((layer) => { const from = performance.now(); w.set({layer});
          return performance.now() - from; }); }"""
    )
    out["layer_change_60_tokens"] = statistics.median(changes)
    page.get_by_role("tab", name="Compare").click()
    page.wait_for_selector("#map-difference canvas", timeout=60000)
    out |= page.evaluate(
        """() => new Promise((done) => { const from = performance.now(), out = {};
        document.querySelector('#agreement-button').click();
        const look = () => { const now = performance.now() - from;
          if (document.querySelector('#agreement .ctxmix-pending')) out.agreement_first_sign ??= now;
          if (document.querySelector('#agreement .ctxmix-progress'))
            done({agreement_first_sign: now, ...out, agreement_first_progress: now});
          else setTimeout(look, 5); };
        look(); })"""
    )
    page.wait_for_selector("#agreement table", timeout=120000)
    return out


def main() -> None:
    from playwright.sync_api import sync_playwright

    load = os.getloadavg()[0]
    with serve() as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        url = f"http://127.0.0.1:{served.port}/"
        runs = [measure(browser.new_page(), url) for _ in range(3)]
        browser.close()
    middle = {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
    made = {
        "commit": commit(),
        "cores": os.cpu_count(),
        "load": load,
        "runs": len(runs),
        "milliseconds": middle,
    }
    RESULTS.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
