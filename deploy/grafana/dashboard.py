"""Builds the Grafana dashboard; ``python -m deploy.grafana.dashboard`` writes it as JSON."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.heatmap import Panel as Heatmap
from grafana_foundation_sdk.builders.heatmap import YAxisConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

OUTPUT = Path(__file__).parent / "dashboards/sentiment.json"

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH, HEIGHT = 6, 7  # four panels fill Grafana's 24 columns
THIRD = 8  # three panels fill them
HALF = 12  # two panels fill them

SERVICE = 'namespace=~"$namespace",job=~"$job"'
JOB = f'{SERVICE},instance=~"$instance"'
MODEL = f'{JOB},model=~"$model"'
RECORDED = f'{SERVICE},model=~"$model"'  # over all replicas
# ASKED: requests for answers. QUICK: those of them that should be answered quickly.
ASKED = f'{JOB},operation!="other"'
QUICK = f'{JOB},operation="classify"'

FAILED = f'{ASKED},status=~"5..",outcome!="client_deadline"'
BY_OUTCOME = "status, outcome"
MODEL_OF_REPLICA = "{{model}} {{instance}}"  # a legend

Query = tuple[str, str]  # expression, legend
Panels = list[TimeSeries | Heatmap | Stat | Table]
Panel = TypeVar("Panel", TimeSeries, Heatmap, Stat, Table)


def rate(metric: str, labels: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{labels}}}[$__rate_interval]))"


def total(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) ({metric}{{{labels}}})"


def increase(counter: str) -> str:
    return f"increase({counter}{{{MODEL}}}[$__rate_interval])"


def mean(histogram: str, labels: str, by: str = "") -> str:
    return f"{rate(f'{histogram}_sum', labels, by)} / {rate(f'{histogram}_count', labels, by)}"


def quantile(percent: int, histogram: str, labels: str, by: str = "") -> str:
    buckets = rate(f"{histogram}_bucket", labels, ", ".join(filter(None, ["le", by])))
    return f"histogram_quantile({percent / 100}, {buckets})"


def quantiles(histogram: str, labels: str, percents: Sequence[int] = (50, 95, 99)) -> list[Query]:
    return [(quantile(percent, histogram, labels), f"p{percent}") for percent in percents]


def queries(*queries: Query) -> list[Dataquery]:
    """The queries with the names A, B, C and so on."""
    return [
        Dataquery().expr(expression).legend_format(legend).range().ref_id(chr(ord("A") + index))
        for index, (expression, legend) in enumerate(queries)
    ]


def placed(
    panel: Panel, title: str, description: str, unit: str, targets: Sequence[Dataquery], span: int
) -> Panel:
    panel.title(title).description(description).unit(unit).datasource(DATASOURCE)
    return panel.targets([*targets]).span(span).height(HEIGHT)


def graph(
    title: str,
    description: str,
    unit: str,
    *asked: Query,
    span: int = WIDTH,
    least: int = 0,
    most: int | None = None,
    limit: float | None = None,
    stacked: bool = False,
) -> TimeSeries:
    """A panel with lines over time, from ``least`` to ``most``.

    A dashed line is drawn at the ``limit`` above which an alert becomes pending.
    """
    panel = placed(TimeSeries(), title, description, unit, queries(*asked), span)
    panel.min(least).fill_opacity(10).show_points(VisibilityMode.NEVER)
    legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST)
    panel.legend(legend.placement(LegendPlacement.BOTTOM).show_legend(True))
    panel.tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    if most is not None:
        panel.max(most)
    if limit is not None:
        steps = [Threshold(color="green"), Threshold(value=limit, color="red")]
        style = GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        panel.thresholds(ThresholdsConfig().steps(steps)).thresholds_style(style)
    if stacked:
        panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    return panel


def overview() -> Panels:
    """What to look at first: whether users get answers, in time, and from how many replicas."""
    requests = "sentiment_http_requests_total"
    outcomes = (
        (f'{ASKED},status=~"2.."', "answered"),
        (f'{ASKED},outcome="overloaded"', "refused"),
        (FAILED, "failed"),
    )
    ready = f"min by (instance) (sentiment_model_ready{{{MODEL}}})"
    return [
        graph(
            "Answers by outcome",
            "Requests for answers: answered, refused because of load (overloaded), or failed"
            " (5xx). Errors of clients are left out.",
            "reqps",
            *((rate(requests, labels), name) for labels, name in outcomes),
            stacked=True,
        ),
        graph(
            "p99 against the deadline",
            "One request in a hundred takes longer than this. The line is the default of"
            " --deadline-ms.",
            "s",
            *quantiles("sentiment_http_request_duration_seconds", QUICK, (99,)),
            limit=10,
        ),
        graph(
            "Predicted wait",
            "Seconds until what waits in each replica is computed. Autoscalers read it.",
            "s",
            (total("sentiment_queue_wait_seconds", MODEL, "instance, model"), MODEL_OF_REPLICA),
        ),
        graph(
            "Replicas ready",
            "Replicas of which all models answer, and all that Prometheus reaches.",
            "suffix: replicas",
            (f"sum({ready})", "ready"),
            (f"count({ready})", "reached"),
        ),
    ]


def traffic() -> Panels:
    """The requests and texts that arrive."""
    tokens = "sentiment_text_tokens"
    warnings = rate("sentiment_warnings_total", MODEL, "warning")
    texts = rate("sentiment_predictions_total", MODEL)
    return [
        graph(
            "Requests",
            "Requests for answers by route, whether they succeeded or failed.",
            "reqps",
            (rate("sentiment_http_requests_total", ASKED, "route"), "{{route}}"),
        ),
        graph(
            "Texts answered",
            "Texts with a result. Plan capacity in texts: one request may have a thousand of them.",
            "suffix: texts/s",
            (rate("sentiment_texts_total", f'{MODEL},outcome="ok"', "model"), "{{model}}"),
        ),
        graph(
            "Length of texts",
            "Tokens in a text before truncation. Longer texts cost more.",
            "suffix: tokens",
            *quantiles(tokens, MODEL, (50, 95)),
            (mean(tokens, MODEL), "mean"),
        ),
        graph(
            "Warnings",
            "Share of the answered texts about which the model may be wrong: other_language, not"
            " the model's; unknown_tokens, what it does not know; truncated, cut off as too long."
            " From 20 % on, SentimentWarnings becomes pending.",
            "percentunit",
            (f"{warnings} / ignoring (warning) group_left () {texts}", "{{warning}}"),
        ),
        graph(
            "Requests by key",
            "Requests of clients whose key has a name in its file, by outcome: ok, rate_limited or"
            " another error.",
            "reqps",
            (rate("sentiment_key_requests_total", JOB, "key, outcome"), "{{key}} {{outcome}}"),
        ),
    ]


def latency() -> Panels:
    """How long answers take, and in which stage."""
    stages = "sentiment_stage_duration_seconds"
    return [
        graph(
            "Duration of requests",
            "Time from the request's headers to its answer, without streams and explanations."
            " Refused requests count as well; under overload they are many and quick. The line"
            " is the limit of the alert SentimentSlow.",
            "s",
            *quantiles("sentiment_http_request_duration_seconds", QUICK),
            limit=1,
        ),
        graph(
            "p99 by route",
            "One request in a hundred takes longer than this. It shows which clients wait.",
            "s",
            (
                quantile(99, "sentiment_http_request_duration_seconds", QUICK, "route"),
                "{{route}}",
            ),
        ),
        graph(
            "Stages, mean",
            "Mean time of answered requests in each stage. The rest of their duration is HTTP.",
            "s",
            (mean(stages, MODEL, "stage"), "{{stage}}"),
            stacked=True,
        ),
        graph(
            "Stages, p99",
            "A high queue means too much load; high inference means long texts or too few CPUs.",
            "s",
            (quantile(99, stages, MODEL, "stage"), "{{stage}}"),
        ),
    ]


def batching() -> Panels:
    """How texts are put into batches."""
    return [
        graph(
            "Texts in a batch",
            "A batch takes texts that wait: about 1 when the service is idle, more under load.",
            "suffix: texts",
            *quantiles("sentiment_batch_texts", MODEL, (95,)),
            (mean("sentiment_batch_texts", MODEL, "model"), "mean {{model}}"),
        ),
        graph(
            "Tokens in a batch",
            "Tokens including padding; --max-batch-tokens is the limit.",
            "suffix: tokens",
            *quantiles("sentiment_batch_tokens", MODEL, (95,)),
            (mean("sentiment_batch_tokens", MODEL, "model"), "mean {{model}}"),
        ),
        graph(
            "Padding",
            "Mean share of padding in a batch. The batcher allows 7 % in a batch.",
            "percentunit",
            (mean("sentiment_batch_padding_ratio", MODEL, "model"), "{{model}}"),
        ),
        graph(
            "Wait in the queue",
            "Time in which none of a request's texts was computed, of answered requests. The"
            " line is the limit of the alert SentimentQueueing.",
            "s",
            *quantiles("sentiment_stage_duration_seconds", f'{MODEL},stage="queue"'),
            limit=0.5,
        ),
    ]


def repeats() -> Panels:
    """What is answered without computing it again."""
    hits = rate("sentiment_cache_hits_total", MODEL, "model")
    misses = rate("sentiment_cache_misses_total", MODEL, "model")
    return [
        graph(
            "Cache hits",
            "Share of the texts whose result was in the cache. It is empty without --cache-mb.",
            "percentunit",
            (f"{hits} / ({hits} + {misses})", "{{model}}"),
            most=1,
            span=THIRD,
        ),
        graph(
            "Size of the cache",
            "Bytes that the results of each model take. --cache-mb is the limit. If hits are many"
            " at the limit, a larger cache may have more.",
            "bytes",
            (total("sentiment_cache_bytes", MODEL, "instance, model"), MODEL_OF_REPLICA),
            span=THIRD,
        ),
    ]


def predictions() -> Panels:
    """What the model predicts, and whether that changes."""
    labels, all_labels = (rate("sentiment_predictions_total", MODEL, by) for by in ("label", ""))
    share = f"namespace_job_model_label:sentiment_predictions:share1h{{{RECORDED}}}"
    reference = f"namespace_job_model_label:sentiment_reference:share{{{RECORDED}}}"
    (scores,) = queries(
        (f"sum by (le) ({increase('sentiment_prediction_score_bucket')})", "{{le}}"),
    )
    drifts = {
        f"{of} {{{{model}}}}": f"namespace_job_model:sentiment_{name}_drift:reference{{{RECORDED}}}"
        for of, name in (("drift", "label"), ("lengths", "length"), ("unknown tokens", "unknown"))
    }
    return [
        graph(
            "Labels",
            "Share of each label in the predictions.",
            "percentunit",
            (f"{labels} / ignoring (label) group_left () {all_labels}", "{{label}}"),
            stacked=True,
            most=1,
        ),
        placed(
            Heatmap(),
            "Scores",
            "Texts by the score of their label. Low scores mean texts unlike the training texts.",
            "suffix: texts",
            [scores.format(PromQueryFormat.HEATMAP)],
            WIDTH,
        ).y_axis(YAxisConfig().unit("percentunit")),
        graph(
            "Mean score",
            "Mean score by label. It falls when texts become unlike the training texts.",
            "percentunit",
            (mean("sentiment_prediction_score", MODEL, "label"), "{{label}}"),
            most=1,
        ),
        graph(
            "Drift against the reference",
            "Share of each label within an hour, less that in the texts on which the bundle was"
            " evaluated. Drift is the share of texts with another label, lengths that of texts"
            " with another length. It is empty for a bundle without such an evaluation. The"
            " line is the limit of SentimentLabelDrift; those of SentimentTextDrift are 50 % of"
            " the texts and 5 % of the tokens.",
            "percentunit",
            (f"{share} - {reference}", "{{label}}"),
            *((query, legend) for legend, query in drifts.items()),
            limit=0.25,
            least=-1,
        ),
    ]


def saturation() -> Panels:
    """How busy the service and its CPUs are."""
    return [
        graph(
            "Waiting texts",
            "Texts in the queue at the time of the scrape.",
            "suffix: texts",
            (total("sentiment_queue_texts", MODEL, "model"), "{{model}}"),
        ),
        graph(
            "Requests in flight",
            "Requests that are read, wait, are computed or are answered; streams count as well.",
            "suffix: requests",
            (total("sentiment_http_requests_in_flight", JOB, "instance"), "{{instance}}"),
        ),
        graph(
            "Event loop lag, p99",
            "Time from a batch's end until the event loop handles it. Beyond 50 ms, the event loop"
            " is the bottleneck: add replicas, not cores.",
            "s",
            (quantile(99, "sentiment_event_loop_lag_seconds", MODEL, "instance"), "{{instance}}"),
        ),
        graph(
            "CPU",
            "Cores that each replica uses. GET /info says how many it has.",
            "suffix: cores",
            (rate("process_cpu_seconds_total", JOB, "instance"), "{{instance}}"),
        ),
        graph(
            "Memory",
            "Memory in use in each replica's container, or on its machine, and the limit. At 90 %,"
            " SentimentMemory becomes pending. Resident memory includes files mapped from disk.",
            "bytes",
            (f"process_resident_memory_bytes{{{JOB}}}", "resident {{instance}}"),
            (f"sentiment_memory_used_bytes{{{JOB}}}", "used {{instance}}"),
            (f"sentiment_memory_limit_bytes{{{JOB}}}", "limit {{instance}}"),
        ),
        graph(
            "Open files",
            "Files and connections as share of the limit. At 100 %, no connection is accepted.",
            "percentunit",
            (f"process_open_fds{{{JOB}}} / process_max_fds{{{JOB}}}", "{{instance}}"),
        ),
        graph(
            "Tokens computed",
            "Tokens in all batches, including padding: the real throughput of the model.",
            "suffix: tokens/s",
            (rate("sentiment_batch_tokens_sum", MODEL, "model"), "{{model}}"),
        ),
    ]


def gpus() -> Panels:
    """How busy the GPUs are. The row is empty on CPUs."""
    gpu = "GPU {{gpu}} {{instance}}"
    used, total = (f"sentiment_gpu_memory_{name}_bytes{{{JOB}}}" for name in ("used", "total"))
    return [
        graph(
            "GPU utilisation",
            "Share of the time in which the GPU computed anything, for any process. At 100 %, it"
            " may still have idle parts; then larger batches give more texts per second. A part of"
            " a GPU (MIG) has no data.",
            "percentunit",
            (f"sentiment_gpu_utilization_ratio{{{JOB}}}", gpu),
            most=1,
            span=THIRD,
        ),
        graph(
            "GPU memory",
            "Share of the GPU's memory that is in use, by all processes. The line is the limit"
            " of the alert SentimentGpuMemory.",
            "percentunit",
            (f"{used} / {total}", gpu),
            limit=0.95,
            most=1,
            span=THIRD,
        ),
        graph(
            "GPUs that answer",
            "1 while NVIDIA's management library can read the GPU, else 0.",
            "none",
            (f"sentiment_gpu_up{{{JOB}}}", gpu),
            span=THIRD,
        ),
    ]


def errors() -> Panels:
    """What is refused, what fails, and what is lost."""
    failed = rate("sentiment_http_requests_total", FAILED)
    return [
        graph(
            "Error ratio",
            "Share of requests with status 5xx. The line is the limit of SentimentErrors.",
            "percentunit",
            (f"{failed} / {rate('sentiment_http_requests_total', ASKED)}", "5xx"),
            limit=0.05,
        ),
        graph(
            "Requests not answered",
            "Requests by status and error. 4xx is an error of the client; 499: the client left;"
            " client_deadline: its own deadline passed, which is no error of the service.",
            "reqps",
            (
                rate("sentiment_http_requests_total", f'{ASKED},status=~"[45].."', BY_OUTCOME),
                "{{status}} {{outcome}}",
            ),
        ),
        graph(
            "Rejections",
            "Requests that were not admitted. queue_full: --max-queue-tokens is reached; deadline:"
            " the answer would come too late; shutting_down: a replica stops.",
            "reqps",
            (rate("sentiment_rejections_total", MODEL, "reason"), "{{reason}}"),
        ),
        graph(
            "Texts not answered",
            "Texts by error code. In a list, a text can fail although the answer has status 200.",
            "suffix: texts/s",
            (rate("sentiment_texts_total", f'{MODEL},outcome!="ok"', "outcome"), "{{outcome}}"),
        ),
        graph(
            "Stuck runners",
            "Runners whose batch takes far longer than predicted, and the batches that did. The"
            " texts of such a batch fail.",
            "suffix: runners",
            (f"sentiment_runners_stuck{{{MODEL}}}", MODEL_OF_REPLICA),
            (increase("sentiment_stalled_batches_total"), f"stalled batches {MODEL_OF_REPLICA}"),
            span=THIRD,
        ),
        graph(
            "Runner failures",
            "Failures of runners outside of inference. They go on; the log has the error.",
            "suffix: runners",
            (increase("sentiment_runners_lost_total"), MODEL_OF_REPLICA),
            span=THIRD,
        ),
        graph(
            "Dropped log lines",
            "Log lines that were not written, because standard error was not read in time.",
            "suffix: lines/s",
            (rate("sentiment_log_lines_dropped_total", JOB, "instance"), "{{instance}}"),
            span=THIRD,
        ),
        graph(
            "Out of memory",
            "Batches in which the memory ran out. They are computed in parts, and later batches are"
            " smaller until the replica restarts.",
            "suffix: batches",
            (increase("sentiment_out_of_memory_total"), MODEL_OF_REPLICA),
            span=HALF,
        ),
        graph(
            "Lost GPUs",
            "1 after a replica has lost its GPU. Only a restart helps, so its liveness fails.",
            "suffix: GPUs",
            (f"sentiment_device_lost{{{MODEL}}}", MODEL_OF_REPLICA),
            span=HALF,
        ),
    ]


def models() -> Panels:
    """The models that are served."""
    ready = {
        "0": ValueMappingResult(text="not ready", color="red"),
        "1": ValueMappingResult(text="ready", color="green"),
    }
    served = (
        "max by (instance, model, digest, precision, provider, version) "
        # As logs show it.
        f"(label_replace(sentiment_model_info{{{MODEL}}}, "
        '"digest", "$1", "digest", "(.{12}).*"))'
    )
    columns = DataTransformerConfig(
        id_val="organize", options={"excludeByName": {"Time": True, "Value": True, "job": True}}
    )
    return [
        placed(
            Stat(),
            "Ready",
            "Whether each model of each replica is warm and answers.",
            "none",
            queries((f"sentiment_model_ready{{{MODEL}}}", MODEL_OF_REPLICA)),
            WIDTH,
        )
        .mappings([ValueMap(options=ready)])
        .color_mode(BigValueColorMode.BACKGROUND)
        .text_mode(BigValueTextMode.VALUE_AND_NAME),
        placed(
            Table(),
            "Served",
            "Digest, precision and provider of each model on each replica.",
            "none",
            [Dataquery().expr(served).format(PromQueryFormat.TABLE).instant().ref_id("A")],
            2 * WIDTH,
        ).transformations([columns]),
        graph(
            "Uptime",
            "Time since each replica started. A saw-tooth line is a replica that keeps restarting.",
            "s",
            (f"time() - process_start_time_seconds{{{JOB}}}", "{{instance}}"),
        ),
    ]


def choice(name: str, labels: str = "", every: str = ".+") -> QueryVariable:
    """A variable to choose values of a label; at first, all of them (``every``) are chosen."""
    return (
        QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATASOURCE)
        .query(f"label_values(sentiment_model_info{{{labels}}}, {name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(every)
        .current(VariableOption(text="All", value="$__all"))
    )


def dashboard() -> Dashboard:
    built = (
        Dashboard("Sentiment service")
        .uid("sentiment")
        .description("Load, latency, errors and predictions. See docs/operations.md.")
        .tags(["sentiment"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        # Only in Kubernetes do series have a namespace, so "all" includes series without one.
        .with_variable(choice("namespace", every=".*"))
        .with_variable(choice("job", 'namespace=~"$namespace"'))
        .with_variable(choice("model", SERVICE))
        .with_variable(choice("instance", f'{SERVICE},model=~"$model"'))
    )
    rows = {
        "Traffic": traffic(),
        "Latency": latency(),
        "Batching": batching(),
        "Repeated texts": repeats(),
        "Predictions": predictions(),
        "Saturation": saturation(),
        "GPUs": gpus(),
        "Errors and rejections": errors(),
        "Models": models(),
    }
    number = count(1)
    for panel in overview():
        built.with_panel(panel.id(next(number)))
    for title, panels in rows.items():
        row = Row(title).id(next(number)).collapsed(True)
        for panel in panels:
            row.with_panel(panel.id(next(number)))
        built.with_row(row)
    return built


def as_json() -> str:
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard().build()) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(as_json(), encoding="utf-8")
