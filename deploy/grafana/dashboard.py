"""The Grafana dashboard; ``python -m deploy.grafana.dashboard`` writes it as JSON."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

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
WIDTH, HEIGHT = 6, 7  # four panels in Grafana's 24 columns

JOB = 'job="sentiment",instance=~"$instance"'
MODEL = f'{JOB},model=~"$model"'
RECORDED = 'job="sentiment",model=~"$model"'  # over all replicas
# Requests for answers; and of these, the ones that are expected to be quick.
ASKED = f'{JOB},method="POST",route!~"/models/.*"'
QUICK = f'{JOB},route=~"/|/classify|/predict|/v1/classify|/v2/.*infer"'

Query = tuple[str, str]  # expression, legend
Panels = list[TimeSeries | Heatmap | Stat | Table]


def rate(metric: str, labels: str, by: str = "") -> str:
    """Counted a second; summed over all labels but ``by``."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{labels}}}[$__rate_interval]))"


def mean(histogram: str, labels: str, by: str = "") -> str:
    """A histogram's mean observation."""
    return f"{rate(f'{histogram}_sum', labels, by)} / {rate(f'{histogram}_count', labels, by)}"


def quantile(percent: int, histogram: str, labels: str, by: str = "") -> str:
    """A histogram's quantile, within its buckets' bounds."""
    buckets = rate(f"{histogram}_bucket", labels, ", ".join(filter(None, ["le", by])))
    return f"histogram_quantile({percent / 100}, {buckets})"


def quantiles(histogram: str, labels: str, percents: Sequence[int] = (50, 95, 99)) -> list[Query]:
    """A query for each."""
    return [(quantile(percent, histogram, labels), f"p{percent}") for percent in percents]


def queries(*queries: Query) -> list[Dataquery]:
    """Queries A, B, C …"""
    return [
        Dataquery().expr(expression).legend_format(legend).range().ref_id(chr(ord("A") + index))
        for index, (expression, legend) in enumerate(queries)
    ]


def graph(title: str, description: str, unit: str, *asked: Query) -> TimeSeries:
    """Lines over time, from zero."""
    return (
        TimeSeries()
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .span(WIDTH)
        .height(HEIGHT)
        .datasource(DATASOURCE)
        .targets([*queries(*asked)])
        .fill_opacity(10)
        .show_points(VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )


def objective(panel: TimeSeries, value: float) -> TimeSeries:
    """Draw the line beyond which an alert waits to fire."""
    steps = [Threshold(color="green"), Threshold(value=value, color="red")]
    return panel.thresholds(ThresholdsConfig().steps(steps)).thresholds_style(
        GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    )


def stacked(panel: TimeSeries) -> TimeSeries:
    """Parts of a whole."""
    return panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)


def traffic() -> Panels:
    """What is asked."""
    tokens = "sentiment_text_tokens"
    truncated = rate("sentiment_truncated_total", MODEL, "model")
    return [
        graph(
            "Requests",
            "Requests for answers by route, whatever became of them.",
            "reqps",
            (rate("sentiment_http_requests_total", ASKED, "route"), "{{route}}"),
        ),
        graph(
            "Texts answered",
            "What capacity is counted in: one request may hold a thousand texts.",
            "suffix: texts/s",
            (rate("sentiment_texts_total", f'{MODEL},outcome="ok"', "model"), "{{model}}"),
        ),
        graph(
            "Length of texts",
            "Tokens of a text before truncation. Cost grows with them.",
            "suffix: tokens",
            *quantiles(tokens, MODEL, (50, 95)),
            (mean(tokens, MODEL), "mean"),
        ),
        graph(
            "Truncated texts",
            "Share of answered texts whose end the model has not seen.",
            "percentunit",
            (f"{truncated} / {rate('sentiment_predictions_total', MODEL, 'model')}", "{{model}}"),
        ),
    ]


def latency() -> Panels:
    """How long answers take, and in which stage."""
    stages = "sentiment_stage_duration_seconds"
    return [
        objective(
            graph(
                "Duration of requests",
                "From headers to answer, but for streams and explanations. Refusals count, too:"
                " under overload they are quick and many. The line is SentimentSlow's.",
                "s",
                *quantiles("sentiment_http_request_duration_seconds", QUICK),
            ),
            1,
        ),
        graph(
            "p99 by route",
            "The slowest hundredth of each: which clients wait.",
            "s",
            (
                quantile(99, "sentiment_http_request_duration_seconds", QUICK, "route"),
                "{{route}}",
            ),
        ),
        stacked(
            graph(
                "Stages, mean",
                "Where an answered request spends its time; the rest of its duration is HTTP.",
                "s",
                (mean(stages, MODEL, "stage"), "{{stage}}"),
            )
        ),
        graph(
            "Stages, p99",
            "Queue: too much load. Inference: long texts, or too few CPUs.",
            "s",
            (quantile(99, stages, MODEL, "stage"), "{{stage}}"),
        ),
    ]


def batching() -> Panels:
    """How texts share batches."""
    return [
        graph(
            "Texts in a batch",
            "Batches form from what waits: about 1 when idle, more under load.",
            "suffix: texts",
            *quantiles("sentiment_batch_texts", MODEL, (95,)),
            (mean("sentiment_batch_texts", MODEL, "model"), "mean {{model}}"),
        ),
        graph(
            "Tokens in a batch",
            "With padding; bounded by --max-batch-tokens.",
            "suffix: tokens",
            *quantiles("sentiment_batch_tokens", MODEL, (95,)),
            (mean("sentiment_batch_tokens", MODEL, "model"), "mean {{model}}"),
        ),
        graph(
            "Padding",
            "Mean share of a batch that is padding. The batcher allows 7 % in a batch.",
            "percentunit",
            (mean("sentiment_batch_padding_ratio", MODEL, "model"), "{{model}}"),
        ),
        objective(
            graph(
                "Wait in the queue",
                "Of requests that were answered: the time in which none of their texts was"
                " computed. The line is SentimentQueueing's.",
                "s",
                *quantiles("sentiment_stage_duration_seconds", f'{MODEL},stage="queue"'),
            ),
            0.5,
        ),
    ]


def predictions() -> Panels:
    """What the model says, and whether that changes."""
    labels, all_labels = (rate("sentiment_predictions_total", MODEL, by) for by in ("label", ""))
    share = f"job_model_label:sentiment_predictions:share1h{{{RECORDED}}}"
    return [
        stacked(
            graph(
                "Labels",
                "Share of each label.",
                "percentunit",
                (f"{labels} / ignoring (label) group_left () {all_labels}", "{{label}}"),
            )
        ).max(1),
        Heatmap()
        .title("Scores")
        .description("Texts by the score of their label. Many low ones: texts unlike training.")
        .unit("suffix: texts")
        .span(WIDTH)
        .height(HEIGHT)
        .datasource(DATASOURCE)
        .targets(
            [
                Dataquery()
                .expr(
                    "sum by (le) (increase("
                    f"sentiment_prediction_score_bucket{{{MODEL}}}[$__rate_interval]))"
                )
                .format(PromQueryFormat.HEATMAP)
                .legend_format("{{le}}")
                .range()
                .ref_id("A")
            ]
        )
        .y_axis(YAxisConfig().unit("percentunit")),
        graph(
            "Mean score",
            "By label. It falls when texts become unlike those of the training.",
            "percentunit",
            (mean("sentiment_prediction_score", MODEL, "label"), "{{label}}"),
        ).max(1),
        objective(
            graph(
                "Drift against yesterday",
                "Change of each label's share, over an hour, since the same hour of yesterday,"
                " and the share of texts that it amounts to. Has data after a day."
                " The line is SentimentLabelDrift's.",
                "percentunit",
                (f"{share} - {share} offset 1d", "{{label}}"),
                (f"job_model:sentiment_label_drift:day{{{RECORDED}}}", "drift {{model}}"),
            ),
            0.15,
        ).min(-1),
    ]


def saturation() -> Panels:
    """How much is left. There is no metric of a GPU: what fills it shows in queue and inference."""
    return [
        graph(
            "Waiting texts",
            "In the queue, at the moment of the scrape.",
            "suffix: texts",
            (f"sum by (model) (sentiment_queue_texts{{{MODEL}}})", "{{model}}"),
        ),
        graph(
            "Waiting tokens",
            "In each replica's queue; at --max-queue-tokens requests get 429.",
            "suffix: tokens",
            (
                f"sum by (instance, model) (sentiment_queue_tokens{{{MODEL}}})",
                "{{model}} {{instance}}",
            ),
        ),
        graph(
            "Requests in flight",
            "Being read, waiting, computed or answered; streams included.",
            "suffix: requests",
            (
                f"sum by (instance) (sentiment_http_requests_in_flight{{{JOB}}})",
                "{{instance}}",
            ),
        ),
        graph(
            "Event loop lag, p99",
            "From a batch's end to the event loop's turn to answer. Beyond 50 ms the loop is"
            " the bottleneck: add replicas, not cores.",
            "s",
            (
                quantile(99, "sentiment_event_loop_lag_seconds", MODEL, "instance"),
                "{{instance}}",
            ),
        ),
        graph(
            "CPU",
            "Cores in use by each replica; GET /info says how many it has.",
            "suffix: cores",
            (
                f"sum by (instance) (rate(process_cpu_seconds_total{{{JOB}}}[$__rate_interval]))",
                "{{instance}}",
            ),
        ),
        graph(
            "Memory",
            "Resident set size; files mapped from disk count.",
            "bytes",
            (f"process_resident_memory_bytes{{{JOB}}}", "{{instance}}"),
        ),
        graph(
            "Open files",
            "Connections, mostly, as share of the limit: beyond it none is accepted.",
            "percentunit",
            (f"process_open_fds{{{JOB}}} / process_max_fds{{{JOB}}}", "{{instance}}"),
        ),
        graph(
            "Tokens computed",
            "In all batches, with padding: the model's real throughput.",
            "suffix: tokens/s",
            (rate("sentiment_batch_tokens_sum", MODEL, "model"), "{{model}}"),
        ),
    ]


def errors() -> Panels:
    """What is refused, and what fails."""
    failed = rate("sentiment_http_requests_total", f'{ASKED},status=~"5.."')
    return [
        objective(
            graph(
                "Error ratio",
                "Share of requests that are answered with 5xx. The line is SentimentErrors'.",
                "percentunit",
                (f"{failed} / {rate('sentiment_http_requests_total', ASKED)}", "5xx"),
            ),
            0.05,
        ),
        graph(
            "Requests not answered",
            "By status; 4xx is for the client to mend, 499 is a client that left.",
            "reqps",
            (
                rate("sentiment_http_requests_total", f'{ASKED},status=~"[45].."', "status"),
                "{{status}}",
            ),
        ),
        graph(
            "Rejections",
            "Requests not admitted. queue_full: --max-queue-tokens; deadline: the answer would"
            " come too late; shutting_down: a replica stops.",
            "reqps",
            (rate("sentiment_rejections_total", MODEL, "reason"), "{{reason}}"),
        ),
        graph(
            "Texts not answered",
            "By error code; in a list a text fails alone, within an answer of status 200.",
            "suffix: texts/s",
            (rate("sentiment_texts_total", f'{MODEL},outcome!="ok"', "outcome"), "{{outcome}}"),
        ),
    ]


def models() -> Panels:
    """Who answers."""
    ready = {
        "0": ValueMappingResult(text="not ready", color="red"),
        "1": ValueMappingResult(text="ready", color="green"),
    }
    columns = DataTransformerConfig(
        id_val="organize", options={"excludeByName": {"Time": True, "Value": True, "job": True}}
    )
    return [
        Stat()
        .title("Ready")
        .description("Each model of each replica: warm, and inference works.")
        .unit("none")
        .span(WIDTH)
        .height(HEIGHT)
        .datasource(DATASOURCE)
        .targets([*queries((f"sentiment_model_ready{{{MODEL}}}", "{{model}} {{instance}}"))])
        .mappings([ValueMap(options=ready)])
        .color_mode(BigValueColorMode.BACKGROUND)
        .text_mode(BigValueTextMode.VALUE_AND_NAME),
        Table()
        .title("Served")
        .description("Revision, precision and provider of each model on each replica.")
        .unit("none")
        .span(2 * WIDTH)
        .height(HEIGHT)
        .datasource(DATASOURCE)
        .targets(
            [
                Dataquery()
                .expr(
                    "max by (instance, model, revision, precision, provider, version) "
                    f"(sentiment_model_info{{{MODEL}}})"
                )
                .format(PromQueryFormat.TABLE)
                .instant()
                .ref_id("A")
            ]
        )
        .transformations([columns]),
        graph(
            "Uptime",
            "Since each replica's start; a saw is a replica that restarts.",
            "s",
            (f"time() - process_start_time_seconds{{{JOB}}}", "{{instance}}"),
        ),
    ]


def choice(name: str, labels: str) -> QueryVariable:
    """A variable with the values of a label; all of them at first."""
    return (
        QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATASOURCE)
        .query(f"label_values(sentiment_model_info{{{labels}}}, {name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(VariableOption(text="All", value="$__all"))
    )


def dashboard() -> Dashboard:
    """The whole of it."""
    built = (
        Dashboard("Sentiment service")
        .uid("sentiment")
        .description("What operators need to know: docs/operations.md reads it with you.")
        .tags(["sentiment"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(choice("model", 'job="sentiment"'))
        .with_variable(choice("instance", 'job="sentiment",model=~"$model"'))
    )
    rows = {
        "Traffic": traffic(),
        "Latency": latency(),
        "Batching": batching(),
        "Predictions": predictions(),
        "Saturation": saturation(),
        "Errors and rejections": errors(),
        "Models": models(),
    }
    number = count(1)
    for title, panels in rows.items():
        built.with_row(Row(title).id(next(number)))
        for panel in panels:
            built.with_panel(panel.id(next(number)))
    return built


def as_json() -> str:
    """The dashboard as Grafana reads it."""
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard().build()) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(as_json(), encoding="utf-8")
