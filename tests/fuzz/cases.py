"""Inputs that have broken readers of JSON, here or elsewhere: replayed by the tests, and what fuzzing starts from."""

import json

ROW = {"user": "u", "prompt": "p", "chosen": "a", "rejected": "b", "group": "g", "label": 0.7, "margin": 1.5}
ROW |= {"split": "train", "kind": "lm_sample"}
TURNS = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
OWN = {"user": 7, "prompt": TURNS[:1], "completion": "text", "group": 12, "split": "support"}


def line(**changes) -> bytes:
    """A row with other fields; ... leaves one out."""
    row = {key: value for key, value in (ROW | changes).items() if value is not ...}
    return json.dumps(row).encode() + b"\n"


def raw(field: str, value: bytes) -> bytes:
    """A row with a field whose value is written as given."""
    return line(**{field: "@@"}).replace(b'"@@"', value)


ROWS = {
    "plain": line(),
    "completion": json.dumps(OWN).encode(),
    "messages": line(prompt=..., chosen=TURNS, rejected=[TURNS[0], {"role": "assistant", "content": "3"}]),
    "three rows": line() + b"\r\n \n" + line(user="v") + line(user="w").strip(),
    "byte order mark": b"\xef\xbb\xbf" + line(),
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf" + line(),
    "utf-16": line().decode().encode("utf-16"),
    "utf-16 without mark": line().decode().encode("utf-16-le"),
    "nothing": b"",
    "blank": b" \n\t\n\r\n",
    "only zeros": b"\0" * 64,
    "torn": line()[:-20],
    "torn in an escape": raw("chosen", b'"\\ud8'),
    "an array of rows": b"[" + line() + b"," + line() + b"]",
    "two rows in a line": line().strip() + line(),
    "a number": b"7\n",
    "a string": b'"row"\n',
    "null": b"null\n",
    "deep lists": b"[" * 100_000 + b"\n",
    "deep objects": b'{"a":' * 100_000 + b"\n",
    "a deep value": raw("user", b"[" * 900 + b"]" * 900),
    "a deep list of messages": raw("chosen", b"[" * 900 + b"]" * 900),
    "NaN": raw("label", b"NaN"),
    "infinity": raw("margin", b"-Infinity"),
    "a huge float": raw("margin", b"1e999"),
    "a huge whole number": raw("margin", b"9" * 400),
    "a whole number that Python refuses": raw("user", b"9" * 5000),
    "minus zero": raw("user", b"-0.0"),
    "half a surrogate pair": raw("chosen", b'"\\ud83d"'),
    "half a surrogate pair as an id": raw("user", b'"\\udc00"'),
    "half a surrogate pair as a field": b'{"\\ud800": 1, "user": "u"}\n',
    "a zero in an id": raw("user", b'"a\\u0000b"'),
    "control characters": raw("chosen", b'"\x1b[31m"'),
    "a repeated field": b'{"user": "a", "user": "b"}\n',
    "repeated in a message": raw("prompt", b'[{"role": "user", "role": "system", "content": "x"}]'),
    "an empty field name": b'{"": 1}\n',
    "not UTF-8": raw("chosen", b'"\xff\xfe"'),
    "overlong UTF-8": raw("chosen", b'"\xc0\xaf"'),
    "right-to-left override": raw("user", b'"\xe2\x80\xae"'),
    "a formula": line(user="=HYPERLINK(1)"),
    "a path": line(user="../../x", group="/etc/passwd"),
    "a script": line(user="</script><script>alert(1)</script>"),
    "messages that are none": line(prompt=[{"role": "user"}]),
    "messages of numbers": line(prompt=[1, 2]),
    "an empty conversation": line(prompt=..., chosen=[], rejected=[]),
    "both empty": line(chosen="", rejected=""),
    "true for a number": line(label=True),
    "text for a number": line(label="1"),
    "a template": line(chosen="{{ 7 * 7 }} %s {0}"),
}

MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "hidden_act": "silu",
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def model(**changes) -> bytes:
    """A config.json with other fields; ... leaves one out."""
    return json.dumps({key: value for key, value in (MODEL | changes).items() if value is not ...}).encode()


def raw_model(field: str, value: bytes) -> bytes:
    """A config.json with a field whose value is written as given."""
    return model(**{field: "@@"}).replace(b'"@@"', value)


CONFIGS = {
    "plain": model(),
    "scaled": model(rope_scaling=LLAMA3),
    "qwen2": model(model_type="qwen2", attention_bias=..., sliding_window=64, use_sliding_window=False),
    "qwen3": model(model_type="qwen3", architectures=["Qwen3ForCausalLM"], layer_types=["full_attention"] * 2),
    "mistral": model(model_type="mistral", attention_bias=..., sliding_window=None),
    "byte order mark": b"\xef\xbb\xbf" + model(),
    "utf-16": model().decode().encode("utf-16"),
    "nothing": b"",
    "an array": b"[]",
    "torn": model()[:-10],
    "not UTF-8": model() + b"\xff",
    "deep": b"[" * 100_000,
    "a deep value": raw_model("quantization_config", b"[" * 900 + b"]" * 900),
    "a repeated field": model()[:-1] + b', "rope_theta": 5.0}',
    "NaN theta": raw_model("rope_theta", b"NaN"),
    "infinite epsilon": raw_model("rms_norm_eps", b"Infinity"),
    "huge theta": raw_model("rope_theta", b"9" * 400),
    "a whole number that Python refuses": raw_model("vocab_size", b"9" * 5000),
    "a billion layers": model(num_hidden_layers=10**9),
    "a number of architectures": model(architectures=3),
    "architectures of numbers": model(architectures=[1, None]),
    "text for layer types": model(layer_types="full_attention"),
    "mixed layer types": model(layer_types=["sliding_attention", 1, None]),
    "objects for layer types": model(layer_types=[{}]),
    "text for a window": model(sliding_window="4096", use_sliding_window=True),
    "false as text": model(tie_word_embeddings="false"),
    "fractional positions": model(rope_scaling=LLAMA3 | {"original_max_position_embeddings": 8192.5}),
    "infinite positions": raw_model("rope_scaling", json.dumps(LLAMA3).encode().replace(b"8192", b"1e999")),
    "huge factor": model(rope_scaling=LLAMA3 | {"factor": 10**400}),
    "scaling of text": model(rope_scaling="llama3"),
    "an unhashable type": model(rope_scaling={"rope_type": ["llama3"]}, rope_parameters={"type": {}}),
    "an unhashable family": model(model_type=["llama"]),
}  # fmt: skip
