"""The Python package `openai` and LangChain, as their users use them.

A call is a line of JSON on standard input; what its caller saw is a line on standard output: texts and finish reasons
by choice, usage, and the error that was raised.
"""

import asyncio
import json
import sys
from typing import Any

import openai
from langchain_core.messages import BaseMessage
from langchain_openai import ChatOpenAI

Json = dict[str, Any]
TIMEOUT_S = 10


def note(seen: Json, answer: Any) -> None:
    for choice in answer.choices:
        said = getattr(choice, "delta", None) or getattr(choice, "message", None)
        add(seen, choice.index, said.content if said else choice.text, choice.finish_reason)
    if answer.usage:
        seen["usage"] = [answer.usage.prompt_tokens, answer.usage.completion_tokens]


def add(seen: Json, index: int, text: str | None, finish_reason: str | None) -> None:
    seen["texts"] += [""] * (index + 1 - len(seen["texts"]))
    seen["texts"][index] += text or ""
    if finish_reason:
        seen["finished"] += [None] * (index + 1 - len(seen["finished"]))
        seen["finished"][index] = finish_reason


def synchronous(call: Json, seen: Json) -> None:
    with openai.OpenAI(**options(call)) as client:
        match call["way"]:
            case "streamed":
                for chunk in client.chat.completions.create(**call["ask"], stream=True):
                    note(seen, chunk)
            case "collected":
                with client.chat.completions.stream(**call["ask"]) as stream:
                    for event in stream:
                        if event.type == "chunk":
                            note(seen, event.chunk)
                    stream.get_final_completion()
            case "completions":
                for part in client.completions.create(**prompt(call["ask"]), stream=True):
                    note(seen, part)
            case "whole":
                reply = client.chat.completions.create(**call["ask"])
                note(seen, reply)
                seen["request_id"] = reply._request_id


async def asynchronous(call: Json, seen: Json) -> None:
    async with openai.AsyncOpenAI(**options(call)) as client:
        match call["way"]:
            case "streamed":
                async for chunk in await client.chat.completions.create(**call["ask"], stream=True):
                    note(seen, chunk)
            case "collected":
                async with client.chat.completions.stream(**call["ask"]) as stream:
                    async for event in stream:
                        if event.type == "chunk":
                            note(seen, event.chunk)
                    await stream.get_final_completion()
            case "completions":
                async for part in await client.completions.create(**prompt(call["ask"]), stream=True):
                    note(seen, part)
            case "whole":
                reply = await client.chat.completions.create(**call["ask"])
                note(seen, reply)
                seen["request_id"] = reply._request_id


def options(call: Json) -> Json:
    return {
        "base_url": call["url"],
        "api_key": call["key"],
        "max_retries": call["retries"],
        "timeout": TIMEOUT_S,
    }


def prompt(ask: Json) -> Json:
    (message,) = ask["messages"]
    return {name: value for name, value in ask.items() if name != "messages"} | {"prompt": message["content"]}


def chain(call: Json, **more: Any) -> tuple[ChatOpenAI, Any]:
    ask = dict(call["ask"])
    messages, told = ask.pop("messages"), ask.pop("stream_options", None)
    if call["way"] == "collected":
        more["streaming"] = True
    return ChatOpenAI(**options(call), **ask, stream_usage=told is not None, **more), messages


def langchain(call: Json, seen: Json) -> None:
    # Its own would be kept: a gateway that stops lets a connection whose call has just ended be for a moment.
    with openai.DefaultHttpxClient() as client:
        model, messages = chain(call, http_client=client)
        if call["way"] == "streamed":
            for chunk in model.stream(messages):
                note_message(seen, chunk)
        else:
            note_message(seen, model.invoke(messages))


async def langchain_async(call: Json, seen: Json) -> None:
    async with openai.DefaultAsyncHttpxClient() as client:
        model, messages = chain(call, http_async_client=client)
        if call["way"] == "streamed":
            async for chunk in model.astream(messages):
                note_message(seen, chunk)
        else:
            note_message(seen, await model.ainvoke(messages))


def note_message(seen: Json, message: BaseMessage) -> None:
    add(seen, 0, str(message.content), message.response_metadata.get("finish_reason"))
    if usage := getattr(message, "usage_metadata", None):
        seen["usage"] = [usage["input_tokens"], usage["output_tokens"]]


def raised(error: Exception) -> Json:
    body = getattr(error, "body", None)
    return {
        "kinds": [kind.__name__ for kind in type(error).__mro__ if kind not in Exception.__mro__],
        "message": body["message"] if isinstance(body, dict) and "message" in body else str(error),
        "status": getattr(error, "status_code", None),
        **{name: getattr(error, name, None) for name in ("code", "type", "param", "request_id")},
    }


async def make(call: Json, seen: Json) -> None:
    match call["sdk"]:
        case "python":
            synchronous(call, seen)
        case "python async":
            await asynchronous(call, seen)
        case "langchain":
            langchain(call, seen)
        case "langchain async":
            await langchain_async(call, seen)


def main() -> None:
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            seen: Json = {"texts": [], "finished": []}
            try:
                runner.run(make(json.loads(line), seen))
            except Exception as error:  # noqa: BLE001 whatever is raised is what the test is about
                seen["error"] = raised(error)
            print(json.dumps(seen), flush=True)  # noqa: T201 to whoever asked


if __name__ == "__main__":
    main()
