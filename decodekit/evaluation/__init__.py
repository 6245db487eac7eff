"""Comparing strategies: quality and speed side by side, on the same prompts and seeds.

`compare` runs, `results` holds the rows, `summary` their figures with intervals, and a `Comparison` shows them.
`texts`, `values` and `intervals` are functions of numbers and texts alone. `calibration` holds the probabilities of
decisions beside what is right.
"""

from decodekit.evaluation.calibration import Calibration, calibrate
from decodekit.evaluation.comparing import compare
from decodekit.evaluation.comparison import Comparison
from decodekit.evaluation.intervals import IntervalEstimate
from decodekit.evaluation.metrics import METRICS
from decodekit.evaluation.results import Outcome, Row
from decodekit.evaluation.summary import Summary
from decodekit.evaluation.task import Example, Task, load_task, shipped_tasks

__all__ = [
    "METRICS",
    "Calibration",
    "Comparison",
    "Example",
    "IntervalEstimate",
    "Outcome",
    "Row",
    "Summary",
    "Task",
    "calibrate",
    "compare",
    "load_task",
    "shipped_tasks",
]
