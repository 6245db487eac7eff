"""`/v1/systemone`: typed questions about a state, each answered with the probability of every option.

The fields of requests and answers, and the prompts, are those of `transformers serve`: each question is a message that
lists its options under labels (``A``, ``B``, ... or ``Yes`` and ``No``), and the answer is read from the label alone,
in the tokenizer's own cut.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import BaseModel, Field

from decodekit.llm import Completion
from decodekit.serving.requests.engine_requests import Asked
from decodekit.serving.requests.fields import JsonObject, Listed, SpokenMessage, WireModel
from decodekit.serving.routes.route import Route
from decodekit.serving.service import Running

MOST_QUESTIONS: Final = 64
MOST_OPTIONS: Final = len(string.ascii_uppercase)

Content: TypeAlias = str | JsonObject | list[Any]


class NoulFields(WireModel):
    """A question with the answers yes and no."""

    type: Literal["noul"]
    instructions: Content | None = Field(None, description="The question.")
    criteria: dict[Literal["true", "false"], Content | None] | None = Field(None, description="What each answer means.")


class ChoiceFields(WireModel):
    """A question with one of several options as answer."""

    type: Literal["choice"]
    instructions: Content | None = Field(None, description="The question.")
    criteria: dict[str, Content | None] = Field(
        min_length=1, max_length=MOST_OPTIONS, description="The options, each with what it means."
    )


class ScoreFields(WireModel):
    """A question with a level, counted from 0, as answer."""

    type: Literal["score"]
    instructions: Content | None = Field(None, description="The question.")
    criteria: Listed[Content] = Field(min_length=1, max_length=MOST_OPTIONS, description="The levels, from the lowest.")


QuestionFields: TypeAlias = Annotated[NoulFields | ChoiceFields | ScoreFields, Field(discriminator="type")]


class DecisionBody(WireModel):
    """A request for decisions."""

    stream: ClassVar[bool] = False

    model: str | None = Field(None, description="The name that `/v1/models` lists; left out, the only one.")
    state: Content = Field(description="What the questions are about: a text, or a value that is written as JSON.")
    questions: dict[str, QuestionFields] = Field(
        min_length=1, max_length=MOST_QUESTIONS, description="The questions by name."
    )
    assets: JsonObject | None = Field(None, max_length=0, description="Images are not read.")


class NoulReply(BaseModel):
    """The probability of yes."""

    type: Literal["noul"]
    noul: float


class ChoiceReply(BaseModel):
    """The likeliest option."""

    type: Literal["choice"]
    choice: str
    confidence: float = Field(description="0 where all are equally likely, 1 for certainty.")
    probabilities: dict[str, float]


class ScoreReply(BaseModel):
    """The mean of the levels."""

    type: Literal["score"]
    score: float
    legend: dict[str, Any]
    confidence: float = Field(description="1 less the mean distance from the likeliest level, 0 for that of chance.")
    probabilities: dict[str, float]


class DecisionUsageReply(BaseModel):
    """The counts of tokens read for a decision."""

    input_tokens: int
    output_tokens: int


class DecisionReply(BaseModel):
    """The answer to a request for decisions."""

    model: str
    answers: dict[str, NoulReply | ChoiceReply | ScoreReply]
    usage: DecisionUsageReply


def _text_of(content: Content | None) -> str:
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)


def options_of(question: QuestionFields) -> dict[str, Any]:
    """The options of a question, with what they mean."""
    if isinstance(question, ChoiceFields):
        return dict(question.criteria)
    if isinstance(question, ScoreFields):
        return {str(level): meaning for level, meaning in enumerate(question.criteria)}
    meanings: dict[Any, Any] = dict(question.criteria or {})
    return {option: meanings.get(option) for option in ("true", "false")}


def labels_of(question: QuestionFields) -> list[str]:
    """The text that the model writes for each option."""
    if isinstance(question, NoulFields):
        return ["Yes", "No"]
    return [*string.ascii_uppercase[: len(question.criteria)]]


def prompt_of(state: str, question: QuestionFields) -> str:
    """The message that asks a question about a state."""
    labels, lines = labels_of(question), [_text_of(question.instructions)]
    for label, (option, given) in zip(labels, options_of(question).items(), strict=True):
        meaning = _text_of(given)
        if isinstance(question, NoulFields):
            lines += [f"{label}: {meaning}"] if meaning else []
        elif isinstance(question, ChoiceFields):
            lines.append(f"{label}. {option}: {meaning}" if meaning else f"{label}. {option}")
        else:
            lines.append(f"{label}. {meaning}")
    kind = "option" if isinstance(question, ChoiceFields) else "level"
    ask = f"Answer with the letter of the {kind} that fits best ({labels[0]} to {labels[-1]}) only."
    if isinstance(question, NoulFields):
        ask = "Answer Yes or No only."
    told = "\n".join(filter(None, lines))
    return f"{state}\n\n{told}\n{ask}"


def answer_of(question: QuestionFields, probabilities: dict[str, float]) -> dict[str, Any]:
    """The answer to a question, by the probabilities of its options."""
    if isinstance(question, NoulFields):
        return {"type": "noul", "noul": probabilities["true"]}
    n, best = len(probabilities), max(probabilities, key=lambda option: probabilities[option])
    if isinstance(question, ChoiceFields):
        confidence = 1.0 if n == 1 else max(0.0, (probabilities[best] - 1 / n) / (1 - 1 / n))
        return {"type": "choice", "choice": best, "confidence": confidence, "probabilities": probabilities}
    levels = [*enumerate(probabilities.values())]
    distance = sum(p * abs(level - int(best)) for level, p in levels)
    of_chance = sum(abs(level - (n - 1) / 2) for level in range(n)) / n
    return {
        "type": "score",
        "score": sum(level * p for level, p in levels),
        "legend": options_of(question),
        "confidence": 1.0 if n == 1 else max(0.0, 1 - distance / of_chance),
        "probabilities": probabilities,
    }


class DecisionsRoute(Route[DecisionBody]):
    """Decisions with the probability of every option."""

    path: ClassVar[str] = "/v1/systemone"
    body = DecisionBody
    reply_model: ClassVar[type[Any]] = DecisionReply
    says: ClassVar[str] = "Decisions with their probabilities"

    def asked(self, body: DecisionBody) -> Asked:
        """See `Route`."""
        prompts = self.service.prompts
        state, asked = _text_of(body.state), [*body.questions.values()]
        told = {"enable_thinking": False} if prompts.reads("enable_thinking") else None

        def read() -> list[list[int]]:
            messages = (SpokenMessage(role="user", content=prompt_of(state, question)) for question in asked)
            return [prompts.of_chat([message], None, told) for message in messages]

        questions = tuple(
            self.service.llm.question(dict(zip(labels_of(one), options_of(one), strict=True)), spelling="canonical")
            for one in asked
        )
        told_of = [_text_of(given) for one in asked for given in (one.instructions, *options_of(one).values())]
        return Asked(read, len(asked) * len(state) + sum(map(len, told_of)), 1, {}, None, None, questions=questions)

    def reply(self, body: DecisionBody, running: Running, completions: Sequence[Completion]) -> dict[str, Any]:
        """See `Route`."""
        answers = {
            name: answer_of(asked, dict(question.decision(completion).probabilities))
            for (name, asked), question, completion in zip(
                body.questions.items(), running.asked.questions, completions, strict=True
            )
        }
        usage = {"input_tokens": running.usage()["prompt_tokens"], "output_tokens": 0}
        return {"model": self.service.name, "answers": answers, "usage": usage}
