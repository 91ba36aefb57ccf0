"""Talks to a gateway through the unmodified clients of OpenAI and Anthropic: clients.py URL."""

import sys

import anthropic
import openai

URL = sys.argv[1]
SMALL, LARGE = "demo-small", "demo-large"
MESSAGES = [{"role": "user", "content": "Tell me a story, please."}]

ai = openai.OpenAI(base_url=f"{URL}/v1", api_key="key", max_retries=0)
claude = anthropic.Anthropic(base_url=URL, api_key="key", max_retries=0)


def openai_lists_models():
    assert [model.id for model in ai.models.list()] == [SMALL, LARGE]


def openai_chats():
    for model in SMALL, LARGE:
        answer = ai.chat.completions.create(model=model, messages=MESSAGES, max_tokens=9)
        assert answer.model == model
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens == 9


def openai_streams():
    options = {"include_usage": True}
    stream = ai.chat.completions.create(
        model=SMALL, messages=MESSAGES, max_tokens=9, stream=True, stream_options=options
    )
    chunks = list(stream)
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert len([word for word in words if word]) == 9, words
    assert chunks[-1].usage.completion_tokens == 9


def openai_completes():
    answer = ai.completions.create(model=SMALL, prompt="Once upon", max_tokens=5)
    assert answer.choices[0].text
    texts = [c.choices[0].text for c in ai.completions.create(model=SMALL, prompt="Once", max_tokens=5, stream=True)]
    assert len([text for text in texts if text]) == 5, texts


def openai_understands_refusals():
    try:
        ai.chat.completions.create(model="nobodys-model", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("an unknown model was served")
    try:
        ai.chat.completions.create(model="", messages=MESSAGES)
    except openai.BadRequestError as error:
        assert "model" in error.message, error
    else:
        raise AssertionError("no model was served")


def anthropic_chats():
    for model in SMALL, LARGE:
        answer = claude.messages.create(model=model, messages=MESSAGES, max_tokens=9, system="Be brief.")
        assert answer.model == model
        assert answer.content[0].text
        assert answer.usage.output_tokens == 9
        assert answer.stop_reason == "max_tokens"


def anthropic_streams():
    with claude.messages.stream(model=LARGE, messages=MESSAGES, max_tokens=9) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(pieces) == 9, pieces
    assert message.content[0].text == "".join(pieces)
    assert message.usage.output_tokens == 9
    events = [event.type for event in claude.messages.create(model=SMALL, messages=MESSAGES, max_tokens=3, stream=True)]
    assert events[0] == "message_start" and events[-1] == "message_stop", events


def anthropic_understands_refusals():
    try:
        claude.messages.create(model="", messages=MESSAGES, max_tokens=9)
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error.body
    else:
        raise AssertionError("no model was served")


for claim in (
    openai_lists_models,
    openai_chats,
    openai_streams,
    openai_completes,
    openai_understands_refusals,
    anthropic_chats,
    anthropic_streams,
    anthropic_understands_refusals,
):
    claim()
    print(claim.__name__)
print("all well")
