"""A model's report: an HTML file that needs no other files. Its figures are SVG in the page.

All its contents come from the model's metadata, so it can be made again from a model file.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slackwater.detector.classify.tree import Model
from slackwater.detector.train.scores import FOUND, STATES

WIDTH_IN, HEIGHT_IN = 6.0, 3.6
Paint = Callable[[Any, Any], None]
"""(matplotlib's axes, data) -> None: draws the data."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse } td, th { padding: .2rem .7rem; border: 1px solid #ccc; text-align: right }
th:first-child, td:first-child { text-align: left } pre { background: #f5f5f5; padding: 1rem; white-space: pre-wrap }
svg { max-width: 100%; height: auto } figure { margin: 1rem 0 } figcaption { color: #555 }
"""


def page(model: Model, text: str) -> str:
    """The report as HTML. `text` is the model in words (`slackwater detector explain`)."""
    about = model.metadata
    scores = about.get("scores") or {}
    tree = scores.get("tree") or {}
    how = str(scores.get("cross_validation", "none were scored"))
    title = f"Model {model.name}, trained {about.get('trained', '?')}"
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>",
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>",
        f"<p>Scores are of recordings that the tree was not trained on: {html.escape(how)}.</p>",
        _judges(scores),
    ]
    figures: tuple[tuple[str, Any, Paint], ...] = (
        ("Confusion of states, ticks (share of each row's)", tree.get("confusion"), _confusion),
        ("Receiver operating characteristic of single ticks, the tree alone", scores.get("curves"), _roc),
        ("Precision and recall of single ticks, the tree alone", scores.get("curves"), _precision_recall),
        ("Time from the onset of a noise to its detection", tree.get("delays_s"), _delays),
        ("Stated probability of a neighbour, and how often it was right", tree.get("reliability"), _reliability),
        ("Error of the estimators of p95 by the share of the data trained on", scores.get("tail"), _tail),
    )
    for caption, data, paint in figures:
        shown = _draw(paint, data) if data else "<p>Not scored: too few recordings to hold one out.</p>"
        parts.append(f"<h2>{html.escape(caption)}</h2><figure>{shown}</figure>")
    for kind, weights in (about.get("importances") or {}).items():
        if weights:
            shown = _draw(_importances, weights, WIDTH_IN + 2, 1.0 + 0.3 * len(weights))
            parts.append(f"<h2>Weight of the features in the tree of a {kind}</h2><figure>{shown}</figure>")
    parts += ["<h2>Estimators of p95</h2>", _estimators(scores.get("tail") or {})]
    parts += ["<h2>Estimators of the CPU</h2>", _laws(scores.get("law"))]
    parts += ["<h2>By kind and intensity</h2>", _by_noise(tree.get("by_noise") or {})]
    parts += ["<h2>Kinds that the tree was not trained on</h2>", _left_out(scores.get("kinds_left_out") or {})]
    parts += ["<h2>The model in words, with its decision tree</h2>", f"<pre>{html.escape(text)}</pre></body></html>\n"]
    return "\n".join(parts)


def reliability_plot(reliability: Mapping[str, Any]) -> str:
    """The reliability plot as SVG, of a result of `slackwater.detector.train.reliability.Reliability.as_dict`."""
    return _draw(_reliability, reliability)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cells(values: Sequence[Any], tag: str) -> str:
        shown = ("-" if value is None else f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in shown)

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{cells(head, 'th')}</tr>{body}</table>"


NOISE_HEAD = ("noises", "missed", "recall", "delay median s", "delay p95 s")


def _noise_row(noises: Mapping[str, Any]) -> list[Any]:
    keys = ("noises", "missed", "recall", "detection_delay_median_s", "detection_delay_p95_s")
    return [noises.get(key) for key in keys]


def _judges(scores: Mapping[str, Any]) -> str:
    head = ("judge", *NOISE_HEAD, "precision of episodes", "false episodes", "calm node-hours", "per node-day")
    last = ("precision", "false_episodes", "calm_node_hours", "false_episodes_per_node_day")
    rows = [
        [judge, *_noise_row(judge_scores), *(judge_scores.get(key) for key in last)]
        for judge in ("tree",)
        if (judge_scores := scores.get(judge))
    ]
    return _table(head, rows)


def _by_noise(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [f"{kind} {level}", *_noise_row(noises)] for kind, levels in kinds.items() for level, noises in levels.items()
    ]
    return _table(("noise", *NOISE_HEAD), rows)


def _left_out(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[kind, ", ".join(noises["left_out_with"]), *_noise_row(noises)] for kind, noises in kinds.items()]
    return _table(("noise", "left out with", *NOISE_HEAD), rows) if rows else "<p>Less than three kinds.</p>"


def _estimators(estimators: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[name, scores["paae"], scores["r2"], scores["rows"]] for name, scores in estimators.items()]
    return _table(("estimator, trained on 70% of the seconds", "PAAE", "R2", "seconds tested on"), rows)


def _laws(law: Mapping[str, Any] | None) -> str:
    if not law:
        return "<p>Not scored: too few recordings to hold one out.</p>"
    rows = [
        [name, scores["r2"], scores["mean_absolute_error"]]
        for name, scores in (("linear", law), ("with quadratic terms", law["quadratic"]))
    ]
    return _table(("law, on recordings held out", "R2", "mean absolute error (share of the CPU)"), rows)


def _draw(paint: Paint, data: Any, width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN) -> str:
    """The SVG of axes on which `paint` has drawn the data."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "slackwater", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        paint(figure.add_subplot(), data)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _confusion(axes: Any, confusion: Mapping[str, Mapping[str, int]]) -> None:
    counts = [[confusion[truth][found_state] for found_state in FOUND] for truth in STATES]
    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(FOUND)), FOUND)
    axes.set_yticks(range(len(STATES)), STATES)
    axes.set(xlabel="found", ylabel="true")
    for row, (numbers, parts) in enumerate(zip(counts, shares, strict=True)):
        for column, (number, part) in enumerate(zip(numbers, parts, strict=True)):
            color = "white" if part > 0.5 else "black"
            axes.text(column, row, f"{number}\n{part:.1%}", ha="center", va="center", fontsize=8, color=color)


def _roc(axes: Any, curves: Mapping[str, Any]) -> None:
    axes.plot(*zip(*curves["roc"], strict=True), marker="o", label=f"area {curves['roc_auc']:g}")
    axes.plot([0, 1], [0, 1], linestyle=":", color="gray")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(loc="lower right")


def _precision_recall(axes: Any, curves: Mapping[str, Any]) -> None:
    label = f"average precision {curves['average_precision']:g}"
    axes.plot(*zip(*curves["precision_recall"], strict=True), marker="o", drawstyle="steps-post", label=label)
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.05))
    axes.legend(loc="lower left")


def _delays(axes: Any, delays_s: Sequence[float]) -> None:
    axes.ecdf(delays_s)
    axes.axvline(0.5, linestyle=":", color="gray")
    axes.axvline(1.0, linestyle=":", color="gray")
    axes.set(xlabel="seconds", ylabel="share of the noises found", xlim=(0, None))


def _reliability(axes: Any, scores: Mapping[str, Any]) -> None:
    """Draws a point for each bin. Its size shows the number of Verdicts; on the line the probability is right."""
    bins = scores["bins"]
    stated, share = [bin_["stated"] for bin_ in bins], [bin_["share"] for bin_ in bins]
    sizes = [20.0 + 180.0 * (bin_["verdicts"] / scores["verdicts"]) ** 0.5 for bin_ in bins]
    axes.plot([0, 1], [0, 1], linestyle=":", color="gray")
    axes.scatter(stated, share, s=sizes, alpha=0.7, label=f"Brier score {scores['brier_score']:g}")
    axes.set(xlabel="stated probability", ylabel="share beside a neighbour", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
    axes.legend(loc="upper left")


def _tail(axes: Any, estimators: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws each estimator's PAAE on all seconds, learnt from the first of them, as Heimdall's figure 4.5."""
    for name, scores in estimators.items():
        shares, errors, _ = zip(*scores["learning_curve"], strict=True)
        axes.plot([100 * share for share in shares], [100 * error for error in errors], marker="o", label=name)
    axes.set(xlabel="share of the seconds trained on, %", ylabel="PAAE, %", ylim=(0, None))
    axes.legend()


def _importances(axes: Any, weights: Mapping[str, float]) -> None:
    ordered = sorted(weights.items(), key=lambda pair: pair[1])
    axes.barh([feature for feature, _ in ordered], [weight for _, weight in ordered])
    axes.set(xlabel="share")
