"""`requests`: what bodies of calls may hold, and how long requests may take to arrive."""

from typing import Annotated

from pydantic import Field

from gateway.config.section import Duration, Name, Positive, Section

# Each lets a tenant reach past the model: queue order, other tenants' caches, the host, or how answers are metered.
BLOCKED_FIELDS = (
    "priority",  # jumps vLLM's and SGLang's queue
    "kv_transfer_params",  # reads or writes another server's KV cache
    "ec_transfer_params",  # as above, for encoder caches
    "chat_template",  # runs a client's Jinja on the engine
    "custom_logit_processor",  # runs a client's code on the engine
    "lora_path",  # loads a file of the engine's host
    "session_params",  # attaches to another session's KV cache
    "bootstrap_host",  # points disaggregated serving at another host
    "bootstrap_port",
    "bootstrap_room",
    "prompt_embeds",  # deserialises tensors of the client
    "return_token_ids",  # changes what events carry, and with it what is counted
    "n_predict",  # llama.cpp's max_tokens, which wins against that one: more would be generated than is reserved
    "n_cmpl",  # llama.cpp's n: more answers than are reserved and counted
    "id_slot",  # takes a slot of llama.cpp's, with another tenant's KV cache
)


class Requests(Section):
    """What bodies may hold, and how long heads and bodies may take to arrive."""

    max_depth: Annotated[Positive, Field(le=128)] = 64
    blocked_fields: tuple[Name, ...] = BLOCKED_FIELDS
    head_timeout: Annotated[Duration, Field(gt=0)] = 30.0
    body_timeout: Annotated[Duration, Field(gt=0)] = 30.0
