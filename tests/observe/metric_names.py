"""What metrics are called in Prometheus."""

from penstock.observe import Kind
from penstock.observe.metric import PREFIX, Metric


def shown_name(metric: Metric) -> str:
    """The name with what Prometheus adds to it."""
    return f"{PREFIX}{metric.name}{'_total' if metric.kind is Kind.COUNTER else ''}"
