"""`/v1/systemone` beside `LLM.decide`, and beside the prompts, answers and pipeline of transformers."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from decodekit.llm import LLM
from decodekit.quoting import QuotedText
from decodekit.serving.routes import systemone as route
from decodekit.serving.routes.systemone import DecisionBody, DecisionReply
from tests.serving.conftest import Endpoint, endpoint_of, events_of

PATH = "/v1/systemone"
QUESTIONS: dict[str, dict[str, Any]] = {
    "spam": {"type": "noul", "instructions": "Is it spam?"},
    "paid": {"type": "noul", "criteria": {"true": "It was paid.", "false": {"open": ["é"]}}},
    "bare": {"type": "noul"},
    "tone": {"type": "choice", "instructions": "What is the tone?", "criteria": {"calm": "Polite", "angry": None}},
    "many": {"type": "choice", "instructions": {"ask": "which"}, "criteria": {f"o{n}": None for n in range(26)}},
    "one": {"type": "choice", "criteria": {"only": None}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["later", {"by": "week"}, "now"]},
}
STATES: tuple[Any, ...] = ("abc, the abc", {"message": "é <x>", "n": [1, None, True]}, ["a", {"b": 2.5}])


@pytest.mark.parametrize("state", STATES, ids=["text", "object", "list"])
def test_prompts_and_answers_are_those_of_transformers(state: Any) -> None:
    utils = pytest.importorskip("transformers.decision.template_utils")
    from transformers.decision import DecisionConfig

    template = utils._compile_jinja_template(utils.DECISION_PROMPT)
    body = DecisionBody.model_validate({"state": state, "questions": QUESTIONS})
    asked = utils.parse_questions(QUESTIONS, DecisionConfig())
    assert [one.name for one in asked] == [*body.questions]
    for theirs, ours in zip(asked, body.questions.values(), strict=True):
        assert route.prompt_of(route._text_of(state), ours) == template.render(state=state, question=theirs)
        assert (route.labels_of(ours), [*route.options_of(ours)]) == (theirs.labels, theirs.options)
        n = len(theirs.options)
        for probabilities in ([(2 + i) / sum(range(2, n + 2)) for i in range(n)], [1 / n] * n):
            by_option = dict(zip(theirs.options, probabilities, strict=True))
            assert route.answer_of(ours, by_option) == theirs.answer(probabilities)


def test_answers_are_decisions(endpoint: Endpoint) -> None:
    state = "abc, the abc"
    answer = endpoint.post(PATH, {"model": "toy", "state": state, "questions": QUESTIONS})
    assert answer.status_code == 200, answer.text
    assert "x-decodekit-seed" not in answer.headers
    reply = DecisionReply.model_validate(answer.json())
    assert [*reply.answers] == [*QUESTIONS] and reply.model == "toy"
    body = DecisionBody.model_validate({"state": state, "questions": QUESTIONS})
    num_read = 0
    for name, asked in body.questions.items():
        prompt = QuotedText(route.prompt_of(state, asked) + "\n")
        choices = dict(zip(route.labels_of(asked), route.options_of(asked), strict=True))
        found = endpoint.llm.decide(prompt, choices, spelling="canonical")
        num_read += found.stats.num_prompt_tokens
        wanted = route.answer_of(asked, dict(found.probabilities))
        got = reply.answers[name].model_dump()
        for field, value in wanted.items():
            assert got[field] == (pytest.approx(value, abs=1e-6) if field != "legend" else value), (name, field)
    assert reply.usage.model_dump() == {"input_tokens": num_read, "output_tokens": 0}


def test_the_pipeline_of_transformers_gives_the_same() -> None:
    """On the bundled model with a chat template of its own."""
    pipelines = pytest.importorskip("transformers.pipelines")
    if not hasattr(pipelines, "DecisionPipeline"):
        pytest.skip("this transformers has no decisions")
    llm = LLM.load("tiny")
    tokenizer = copy.deepcopy(llm.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}: {% endif %}"
    )
    ours = LLM(llm.model, copy.deepcopy(tokenizer))
    module: Any = llm.model.model  # type: ignore[attr-defined]
    pipe = pipelines.DecisionPipeline(model=module, tokenizer=tokenizer)
    asked = {
        "state": "Invoice A-17, total 40.20 EUR.",
        "questions": {k: QUESTIONS[k] for k in ("spam", "tone", "urgency")},
    }
    theirs = pipe(copy.deepcopy(asked))
    served = endpoint_of(ours)
    try:
        answers = served.post(PATH, asked).json()["answers"]
    finally:
        served.service.close()
    for name, wanted in theirs.items():
        for field, value in wanted.items():
            assert answers[name][field] == (
                pytest.approx(value, abs=1e-5) if isinstance(value, float | dict) and field != "legend" else value
            )


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"state": None}, "state", "state"),
        ({"state": 3}, "state", "state"),
        ({"questions": {}}, "questions", "at least 1"),
        ({"questions": {f"q{n}": {"type": "noul"} for n in range(65)}}, "questions", "at most 64"),
        ({"questions": {"a": {"type": "which"}}}, "questions.a", "kind"),
        ({"questions": {"a": {"type": "choice"}}}, "questions.a.criteria", "missing"),
        ({"questions": {"a": {"type": "choice", "criteria": {}}}}, "questions.a.criteria", "at least 1"),
        ({"questions": {"a": {"type": "score", "criteria": ["x"] * 27}}}, "questions.a.criteria", "at most 26"),
        ({"questions": {"a": {"type": "noul", "criteria": {"maybe": "x"}}}}, "questions.a.criteria.maybe", "maybe"),
        ({"questions": {"a": {"type": "noul", "depth": 1}}}, "questions.a.depth", "unknown"),
        ({"assets": {"img-1": {"data_base64": ""}}}, "assets", "at most 0"),
        ({"stream": True}, "stream", "unknown"),
    ],
)
def test_what_is_refused(endpoint: Endpoint, changes: dict[str, Any], param: str, says: str) -> None:
    answer = endpoint.post(PATH, {"state": "abc", "questions": {"a": {"type": "noul"}}, **changes})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "DK801"), answer.text
    assert error["param"].startswith(param) and says in error["message"]


def test_another_model_and_empty_assets(endpoint: Endpoint) -> None:
    body = {"state": "abc", "questions": {"a": {"type": "noul"}}}
    assert endpoint.post(PATH, {**body, "model": "other"}).status_code == 404
    assert endpoint.post(PATH, {**body, "assets": {}}).status_code == 200


def test_decisions_and_streams_go_on_together(endpoint: Endpoint) -> None:
    """A stream has the same text while many questions are asked."""
    body = {"prompt": "abc", "seed": 3, "max_tokens": 40, "stream": True}
    alone = events_of(endpoint.post("/v1/completions", body))
    asked = {"state": "the abc " * 40, "questions": QUESTIONS}

    async def together() -> list[Any]:
        async with endpoint.client() as client:
            return await asyncio.gather(
                client.post("/v1/completions", json=body), *(client.post(PATH, json=asked) for _ in range(6))
            )

    stream, *answers = asyncio.run(together())

    def text_of(events: list[Any]) -> str:
        return "".join(one["choices"][0]["text"] for one in events[:-1])

    assert text_of(events_of(stream)) == text_of(alone)
    assert {one.status_code for one in answers} == {200}
    assert len({one.text for one in answers}) == 1


def test_few_rows_and_drafts(endpoint: Endpoint) -> None:
    """Proposers are for texts, and a question may have more rows than the engine has for all."""
    body = {"state": "abc", "questions": {name: QUESTIONS[name] for name in ("tone", "many")}}
    small = endpoint_of(endpoint.llm, batch_size=1, speculate=("prompt-lookup",))
    try:
        assert small.post(PATH, body).json() == endpoint.post(PATH, body).json()
    finally:
        small.service.close()
