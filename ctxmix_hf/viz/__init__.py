"""Pictures and files of maps and attributions: canvas (notebook, HTML, Space), terminal, matplotlib, LaTeX, export."""
