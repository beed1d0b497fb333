"""`slackwater train` and `slackwater detector`: making a model from recordings, and reading one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from slackwater.core.files import write_whole
from slackwater.detector.classify import tree
from slackwater.detector.estimator import TERMS
from slackwater.detector.recordings.recording import RecordingError, read
from slackwater.detector.train import reliability
from slackwater.detector.train.learned import Progress, TrainingError, track
from slackwater.detector.train.report import page, reliability_plot
from slackwater.detector.train.scores import SURE
from slackwater.detector.train.training import train_model


def _files(data: Iterable[Path]) -> list[Path]:
    """The recordings' files: for a folder all *.parquet in it."""
    files: list[Path] = []
    for path in data:
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise click.ClickException(f"{path}: there is no *.parquet in this folder")
        files += [file for file in inside if file not in files]
    return files


def progress() -> Progress:
    """A progress line on stderr, on a terminal only."""

    def show(step: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            filled = round(30 * done / total) if total else 30
            end = "\n" if done == total else ""
            click.echo(f"\r{step:>18} [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}{end}", nl=False, err=True)

    return show


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Model file to write.")
@click.option("--name", default="", help="Name that Verdicts give the model; default: the file's name.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report (HTML).")
@click.option("--json", "as_json", is_flag=True, help="Print the metadata with all scores as JSON.")
def train(data: tuple[Path, ...], out: Path, name: str, report: Path | None, as_json: bool) -> None:
    """Build the decision tree and the load estimator from labelled recordings.

    DATA are recordings (*.parquet) or folders of them. The scores are of recordings that the tree was not trained on.

    Example: slackwater train recordings/ --out model.skops
    """
    try:
        show = progress()
        recordings = [read(file) for file in track(_files(data), "reading", show)]
        today = time.strftime("%Y-%m-%d", time.gmtime())
        model = train_model(recordings, out, name or out.stem, today, show)
        if report is not None:
            write_report(report, model)
    except (RecordingError, TrainingError, tree.ModelError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(model.metadata, indent=2) if as_json else f"{describe(model)}\n\nwritten: {out}")


def write_report(path: Path, model: tree.Model) -> None:
    """Writes a model's report as HTML. Raises OSError."""
    write_whole(path, page(model, describe(model)).encode())


@click.group(epilog="Example: slackwater detector explain")
def detector() -> None:
    """What the detector knows, and how it decides."""


@detector.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--model", "which", default="", help="Model file; default: the shipped model.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also plot how often the stated probability of a neighbour was right (SVG).",
)
@click.option("--json", "as_json", is_flag=True, help="Print all scores as JSON.")
def evaluate(data: tuple[Path, ...], which: str, plot: Path | None, as_json: bool) -> None:
    """Replay recordings through the whole detector, and score it against their labels.

    DATA are recordings (*.parquet) or folders of them. Scores of recordings that the model was trained on flatter it.

    Example: slackwater detector evaluate fresh/ --model model.skops --plot reliability.svg
    """
    from slackwater.detector.train import evaluate as evaluating

    try:
        model = tree.load(tree.path_of(which))
        result = evaluating.evaluate([read(file) for file in _files(data)], model, progress())
        if plot is not None:
            if result["reliability"] is None:
                raise click.ClickException(f"{plot}: not written: no Verdict stated a probability")
            write_whole(plot, reliability_plot(result["reliability"]).encode())
    except (RecordingError, TrainingError, tree.ModelError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(result, indent=2) if as_json else _describe_evaluation(result))


@detector.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print scores and learning curves as JSON.")
def tail(data: tuple[Path, ...], as_json: bool) -> None:
    """Compare the estimators of p95 response time (forest, SVM, reinforcement learning) on recordings.

    Each is trained on 70% of the seconds and tested on the others. PAAE is the mean of |predicted - measured| over
    measured.

    Example: slackwater detector tail recordings/ --json
    """
    from slackwater.detector.tail.curves import TooFewRows, compare
    from slackwater.detector.tail.data import rows_of

    try:
        estimators = compare(rows_of([read(file) for file in _files(data)]))
    except (RecordingError, TooFewRows) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(estimators, indent=2))
        return
    for name, scores in estimators.items():
        click.echo(f"{name}: PAAE {scores['paae']:g}, R2 {scores['r2']:g} on {scores['rows']} seconds not trained on")
        curve = ", ".join(f"{share:.0%} {error:g}" for share, error, _ in scores["learning_curve"])
        click.echo(f"  PAAE by share of the data trained on: {curve}")


@detector.command("evidence")
@click.argument("data", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--model", "which", default="", help="Model file; default: the shipped model.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts and what follows from them as JSON.")
def count_evidence(data: tuple[Path, ...], which: str, as_json: bool) -> None:
    """Count how often Samples fall into each level of a model, in calm and beside a neighbour, and what follows.

    A Sample counts for the time that it covers, in times of 0.2 s, so recordings may be made at any pace. DATA are
    recordings (*.parquet) or folders of them.

    Example: slackwater detector evidence recordings/ --json
    """
    from slackwater.detector.train.learned import show
    from slackwater.detector.train.levels import calm_sums, evidence

    try:
        model = tree.load(tree.path_of(which))
        seen = show([read(file) for file in _files(data)], model, progress())
    except (RecordingError, tree.ModelError) as error:
        raise click.ClickException(str(error)) from None
    counts: dict[str, Any] = {}
    for kind, kind_tree in enumerate(model.trees):
        if any(node.kind == kind for node in seen):
            counted, calm = evidence(seen, kind_tree, kind), calm_sums(seen, kind_tree, kind)
            rates = {f"{rate:g}": round(calm.threshold(rate), 2) for rate in (0.1, 1.0, 10.0, 100.0)}
            ratios = counted.ratios.round(3).tolist()
            counts[tree.KINDS[kind]] = {
                **counted.as_dict(),
                "ratios": ratios,
                "sums": calm.as_dict(),
                "thresholds": rates,
            }
    if as_json:
        click.echo(json.dumps(counts, indent=2))
        return
    for name, counts_of_kind in counts.items():
        click.echo(f"{f'{name}: a Sample says':<24}{'in calm':>10}{'beside':>10}")
        for ratio, calm_count, beside in zip(
            counts_of_kind["ratios"], counts_of_kind["calm"], counts_of_kind["neighbour"], strict=True
        ):
            click.echo(f"{ratio:<+24.2f}{calm_count:>10.0f}{beside:>10.0f}")
        highest = ", ".join(f"{peak:g}" for peak in counts_of_kind["sums"]["peaks"]) or "none"
        click.echo(f"highest sums in {counts_of_kind['sums']['days']:g} node-days without a neighbour: {highest}")
        for rate, threshold in counts_of_kind["thresholds"].items():
            click.echo(f"{rate} false episodes a node-day: an episode begins at {threshold:g}")


def _describe_evaluation(result: dict[str, Any]) -> str:
    lines = _judge_lines(result["model"], result)
    lines.append(f"  noticed by users (p95 up by half or more): {_describe_noises(result['felt'])}")
    ends = result["false_episodes_per_node_day_interval"]
    rate = _or_dash(result["false_episodes_per_node_day"]) + (_interval(ends) if ends else "")
    lines.append(f"  false episodes per node-day: {rate}")
    for kind, noises in result["by_kind"].items():
        lines.append(f"  {kind}, noticed by users: {_describe_noises(noises['felt'])}")
    for kind, levels in result["by_noise"].items():
        for level, noises in levels.items():
            lines.append(f"  {kind} {level}: {_describe_noises(noises)}")
    if stated := result.get("reliability"):
        lines += reliability.lines(stated)
    return "\n".join([*lines, *_law(result.get("law"))])


@detector.command()
@click.option("--model", "path", type=click.Path(path_type=Path), help="Model file; default: the shipped one.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report (HTML).")
@click.option("--json", "as_json", is_flag=True, help="Print the metadata as JSON.")
def explain(path: Path | None, report: Path | None, as_json: bool) -> None:
    """Print a model: its tree, features, scores, and what it was trained on.

    Example: slackwater detector explain --model model.skops
    """
    try:
        model = tree.load(path or tree.SHIPPED)
        if report is not None:
            write_report(report, model)
    except tree.ModelError as error:
        raise click.ClickException(str(error)) from None
    trees = {kind: kind_tree.rows() for kind, kind_tree in zip(tree.KINDS, model.trees, strict=True)}
    about = {**model.metadata, "trees": trees, "coefficients": list(model.coefficients)}
    click.echo(json.dumps(about, indent=2) if as_json else describe(model))


def describe(model: tree.Model) -> str:
    """A model in words: tree, estimator, scores, data."""
    about = model.metadata
    lines = [
        f"model {model.name}, trained {about.get('trained', '?')}",
        "Each feature is 0 where all is as in calm, and 1 where a signal is as far from calm as its scale: the signal",
        "that stands out most, the one of another group that does, and how much of it users feel. A signal that is",
        "absent or as usual counts as calm.",
        "",
    ]
    for kind, kind_tree in zip(tree.KINDS, model.trees, strict=True):
        lines += [f"Decision tree of nodes that are a {kind}", kind_tree.draw(), ""]
    terms = [f"{value:.3g} * {term}" for term, value in zip(TERMS[:-1], model.coefficients[:-1], strict=True)]
    lines.append(f"Load estimator: cpu = {' + '.join([*terms, f'{model.coefficients[-1]:.3g}'])}")
    for kind, weights in about.get("importances", {}).items():
        lines += ["", f"Weight of the features in the tree of a {kind}"]
        for feature, value in sorted(weights.items(), key=lambda pair: -pair[1]):
            lines.append(f"  {value:6.1%}  {feature}")
    lines += ["", *_scores(about.get("scores") or {}), "", "Trained on"]
    for part in about.get("data", []):
        lines.append(
            f"  {part['file']}: {part['description']} ({part['seconds']:g} s, {part['nodes']} nodes, "
            f"{part['samples']} samples; {', '.join(part['kinds']) or 'calm only'})"
        )
    versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    return "\n".join([*lines, "", f"Versions: {versions}"])


def _judge_lines(name: str, result: dict[str, Any]) -> list[str]:
    """The scores of a judge, as lines."""
    lines = [
        f"  {name}: {_describe_noises(result)}; "
        f"{result['false_episodes']} false episodes in {result['calm_node_hours']:.3g} calm node-hours"
    ]
    for state, ticks in result["states"].items():
        if ticks["ticks"]:
            lines.append(
                f"    {state:<13} precision {_or_dash(ticks['precision'])}, recall {_or_dash(ticks['recall'])} "
                f"of {ticks['ticks']} ticks"
            )
    return lines


def _scores(scores: dict[str, Any]) -> list[str]:
    lines = [f"Scores ({scores.get('cross_validation', 'none')})"]
    if (result := scores.get("tree")) is None:
        lines.append("  not scored: too few recordings to hold one out")
    else:
        lines += _judge_lines("trees", result)
        if stated := result.get("reliability"):
            lines += reliability.lines(stated)
        else:
            lines.append("  stated probability of a neighbour: not scored; `slackwater detector evaluate` scores it")
    lines += _law(scores.get("law"))
    for kind, noises in scores.get("kinds_left_out", {}).items():
        lines.append(f"  {kind}, never trained on: {_describe_noises(noises)}")
    return lines


def _describe_noises(noises: dict[str, Any]) -> str:
    median, p95 = _or_dash(noises["detection_delay_median_s"]), _or_dash(noises["detection_delay_p95_s"])
    recall = f"found {noises['recall']:.3g}{_interval(ends)}; " if (ends := noises.get("recall_interval")) else ""
    return (
        f"{noises['noises']} noises, {noises['missed']} missed; {recall}detection delay median {median} s, p95 {p95} s"
    )


def _interval(ends: list[float]) -> str:
    return f" ({ends[0]:.3g} to {ends[1]:.3g}, {SURE:.0%} sure)"


def _law(law: dict[str, Any] | None) -> list[str]:
    if law is None:
        return []
    lines = [f"  estimator: R2 {law['r2']}, mean absolute error {law['mean_absolute_error']} of the CPU"]
    if more := law.get("quadratic"):
        lines.append(f"    with quadratic terms: R2 {more['r2']}, mean absolute error {more['mean_absolute_error']}")
    return lines


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
