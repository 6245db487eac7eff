"""Comparing strategies: quality and speed side by side, on the same prompts and seeds.

`compare` runs, `results` holds the rows, `summary` their figures with intervals, and a `Comparison` shows them.
`texts`, `values` and `intervals` are functions of numbers and texts alone. `calibration` holds the probabilities of
decisions beside what is right.
"""

from decodekit.evaluation.calibration import Calibration as Calibration
from decodekit.evaluation.calibration import calibrate as calibrate
from decodekit.evaluation.comparing import compare as compare
from decodekit.evaluation.comparison import Comparison as Comparison
from decodekit.evaluation.intervals import IntervalEstimate as IntervalEstimate
from decodekit.evaluation.metrics import METRICS as METRICS
from decodekit.evaluation.results import Outcome as Outcome
from decodekit.evaluation.results import Row as Row
from decodekit.evaluation.summary import Summary as Summary
from decodekit.evaluation.task import Example as Example
from decodekit.evaluation.task import Task as Task
from decodekit.evaluation.task import load_task as load_task
from decodekit.evaluation.task import shipped_tasks as shipped_tasks
