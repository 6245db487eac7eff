"""Comparing strategies: quality and speed side by side, on the same prompts and seeds.

`comparison_run` compares, `result_rows` holds the rows, `reports` their figures with intervals, and a `Comparison`
shows them. `measures` and `intervals` are functions of numbers and texts alone; `measures.calibration` holds the
probabilities of decisions beside what is right.
"""

from decodekit.evaluation.comparison import Comparison as Comparison
from decodekit.evaluation.comparison_run import compare as compare
from decodekit.evaluation.measures.calibration import calibrate as calibrate
from decodekit.evaluation.task import Example as Example
from decodekit.evaluation.task import Task as Task
from decodekit.evaluation.task import load_task as load_task
from decodekit.evaluation.task import shipped_tasks as shipped_tasks
