"""Where the project lives: the only place that says so (setup.py and the Hub cards read it here)."""

REPOSITORY = "https://github.com/ctxmix/ctxmix_hf"
PROJECT_URLS = {
    "Homepage": REPOSITORY,
    "Repository": REPOSITORY,
    "Documentation": f"{REPOSITORY}/tree/main/docs",
    "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}
