# SPDX-License-Identifier: Apache-2.0
"""Draws allocated against requested GPU amount, one line a policy (``--plot``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpudra.api.errors import InputError
from gpudra.controller.ctl.simulate.results import PublishedRun, mean

FORMATS = (".png", ".svg")


def check_plot_file(path: Path) -> None:
    """Refuses, before a long run, a picture that could not be written after it."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"ends in {path.suffix or 'nothing'}", file=str(path), hint="use .png or .svg"
        )
    if not path.resolve().parent.is_dir():
        raise InputError("its folder does not exist", file=str(path))
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise InputError(
            "drawing needs matplotlib", file=str(path), hint="pip install 'gpudra[plot]'"
        ) from error
    del mpl


def draw(path: Path, title: str, runs: Mapping[str, Sequence[PublishedRun]]) -> None:
    """Writes the picture; curves are means over the runs of a policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.subplots()
    for policy, results in runs.items():
        curves = [run.curve for run in results]
        points = min(len(curve) for curve in curves)
        requested = [mean([curve[i].requested for curve in curves]) for i in range(points)]
        allocated = [mean([curve[i].allocated for curve in curves]) for i in range(points)]
        axes.plot(requested, allocated, label=f"{policy} ({allocated[-1]:.2f} %)", linewidth=1.6)
    last = max(run.curve[-1].requested for results in runs.values() for run in results)
    axes.plot([0, min(100, last)], [0, min(100, last)], color="0.7", linewidth=0.8, linestyle="--")
    axes.set_xlabel("requested GPU amount (% of the cluster)")
    axes.set_ylabel("allocated GPU amount (% of the cluster)")
    axes.set_title(title)
    axes.grid(visible=True, color="0.92")
    axes.legend()
    figure.savefig(path, dpi=140)
